"""How fast sources become batches: ours beside the plain pipelines that one writes by hand.

Image folders, TFRecord, ArrayRecord, Parquet and Hugging Face datasets are written into a temporary folder. All
contenders of a case read the same files, each in a process of its own, with the same number of workers: `--workers`, by
default `recommended_workers()`. Contenders whose packages are not installed are left out. With `--device`, each batch
is copied to the accelerator. The contenders are in `input_ways.py`.
"""

import csv
import functools
import io
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import input_ways
from benchmarks.contenders import ContenderProcess, alternate, processes
from benchmarks.input_ways import BATCH, FEATURES, PHOTO, SIDE, Images, Setting
from benchmarks.options import Options
from benchmarks.results import OURS, Case

IMAGES, PHOTOS, ROWS = 1024, 512, 32_768
SECONDS = 1.5  # that a round takes at least; of several epochs, where one is shorter


def run(options: Options) -> Iterator[Case]:
    """Yields a case for each source and each way to read it."""
    from everstep.data.workers import recommended_workers
    from everstep.engine import backend

    backend.select((options.installed_backends or ["jax"])[0])
    workers = options.workers or recommended_workers()
    images, photos, rows = (
        min(options.steps * BATCH, size) if options.steps else size for size in (IMAGES, PHOTOS, ROWS)
    )
    print(
        f"{images} images of {SIDE} × {SIDE}, {photos} photographs of {PHOTO[1]} × {PHOTO[0]}, {rows} rows, batches of "
        f"{BATCH}; {workers} workers"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, images, photos, rows)
        for case, compared in input_ways.CASES.items():
            ways = input_ways.installed(case)
            count = rows if compared.unit == "rows/s" else photos if case.startswith("photo") else images
            if OURS in ways and len(ways) > 1:
                yield _compared(case, ways, Setting(folder, workers, count), options)
        yield _cpu_per_image(Setting(folder, 0, images))
        yield _data_wait(folder)


def _compared(case: str, ways: list[str], setting: Setting, options: Options) -> Case:
    asked = {
        "case": case,
        "folder": str(setting.folder),
        "workers": setting.workers,
        "count": setting.count,
        "device": options.device,
    }

    def started(way: str) -> ContenderProcess:
        return ContenderProcess("benchmarks.input_ways", json.dumps(asked | {"way": way}), device=options.device)

    with processes(**{way: started(way) for way in ways}) as running:
        epochs = {}
        for way, process in running.items():
            process.ask("rate", epochs=1)  # files are in memory then, workers started, and functions traced
            epochs[way] = math.ceil(SECONDS * process.ask("rate", epochs=1) / setting.count)
        cpu: dict[str, list[float]] = {way: [] for way in ways}

        def measured(way: str) -> float:
            before = running[way].ask("cpu")
            rate = running[way].ask("rate", epochs=epochs[way])
            cpu[way].append((running[way].ask("cpu") - before) / epochs[way] / setting.count)
            return float(rate)

        values = alternate({way: functools.partial(measured, way) for way in ways}, options.rounds)
    # On a machine that does something else at the same time, this is what can be compared.
    times = {way: round(statistics.median(found) * 1e6, 2) for way, found in cpu.items()}
    notes = {"workers": setting.workers, "µs of processor time for each": times}
    return Case(case, input_ways.CASES[case].unit, values, notes=notes)


# -- files -------------------------------------------------------------------------------------------------------------


def jpeg(number: int, height: int = SIDE, width: int = SIDE) -> bytes:
    """Returns an image that compresses about as well as a photograph."""
    from PIL import Image

    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (height // 8, width // 8, 3), np.uint8))
    resample = Image.Resampling.NEAREST if height == SIDE else Image.Resampling.BILINEAR
    image = np.asarray(coarse.resize((width, height), resample))
    image = image // 2 + random.integers(0, 8, image.shape, np.uint8)
    data = io.BytesIO()
    Image.fromarray(image).save(data, "JPEG", quality=85)
    return data.getvalue()


def _write(folder: Path, images: int, photos: int, rows: int) -> None:
    for name, count, size in (("images", images, (SIDE, SIDE)), ("photos", photos, PHOTO)):
        for number in range(count):
            path = folder / name / str(number % 10) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number, *size))
    if OURS in input_ways.installed("TFRecord of PNG images"):
        from everstep.data.tfrecord import write_arrays

        pixels = np.random.default_rng(0).integers(0, 256, (images, SIDE, SIDE, 3), np.uint8) // 32 * 32
        write_arrays(str(folder / "records"), "train", {"image": pixels, "number": np.arange(images)}, shards=8)
    if OURS in input_ways.installed("ArrayRecord of JPEG images"):
        from array_record.python import array_record_module

        writer = array_record_module.ArrayRecordWriter(str(folder / "images.array_record"), "group_size:1")
        for number in range(images):
            writer.write(jpeg(number))
        writer.close()
    _write_tables(folder, rows)


def _write_tables(folder: Path, rows: int) -> None:
    """16 floats and a label in each row; a dataset has the floats in one column."""
    import pyarrow
    import pyarrow.parquet as pq

    random = np.random.default_rng(0)
    columns = {name: random.random(rows, np.float32) for name in FEATURES}
    columns["label"] = random.integers(0, 10, rows)
    pq.write_table(pyarrow.table(columns), folder / "rows.parquet", row_group_size=8192)
    if OURS not in input_ways.installed("Hugging Face dataset"):
        return
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {"x": datasets.List(datasets.Value("float32"), length=len(FEATURES)), "label": datasets.Value("int64")}
    )
    floats = np.stack([columns[name] for name in FEATURES], axis=1)
    table = datasets.Dataset.from_dict({"x": floats, "label": columns["label"]}, features=features)
    table.save_to_disk(str(folder / "table"))


# -- without workers, and in training ----------------------------------------------------------------------------------


def _cpu_per_image(setting: Setting) -> Case:
    """Returns the CPU time of an image, in milliseconds: it does not depend on what else the machine does."""
    ways = input_ways.CASES["JPEG folder by ImageSource"].ways
    epochs = {name: ways[name][1](setting) for name in ("Pillow loop", OURS)}
    found: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(3):
        for name, epoch in epochs.items():
            begin = time.process_time()
            for _ in epoch():
                pass
            found[name].append((time.process_time() - begin) / setting.count * 1000)
    return Case("JPEG folder, CPU time of an image", "ms", found)


def _data_wait(folder: Path) -> Case:
    """Trains a small network on the image folder; returns the share of the time that it waited for data."""
    import keras

    from everstep.experiment import run_experiment
    from everstep.experiment_config import ExperimentConfig
    from everstep.task.classification import ClassificationTask

    paths = sorted((folder / "images").rglob("*.jpg"))

    class Task(ClassificationTask):
        """A network that computes less than it takes to decode its images."""

        def build_model(self) -> keras.Model:
            layers = [keras.layers.AveragePooling2D(8), keras.layers.Flatten(), keras.layers.Dense(10)]
            return keras.Sequential([keras.Input((SIDE, SIDE, 3)), *layers])

        def build_inputs(self, params: Any, input_context: Any = None) -> Any:
            return Images(paths)

    params = ExperimentConfig()
    params.override({"task": {"train_data": {"global_batch_size": BATCH, "is_training": True}}})
    params.override({"trainer": {"train_steps": 400, "steps_per_loop": 40, "checkpoint_interval": 0}})
    run_experiment(Task(), params, folder / "run", "train", export=False, verbose=False)
    with open(folder / "run" / "history.csv", encoding="utf-8") as file:
        waited = [float(row["data_wait"]) for row in csv.DictReader(file)][2:]
    note = "data_wait in history.csv; a run of 20 seconds or more would log how to feed it faster"
    return Case("Training on the JPEG folder, share of the time waiting", "share", {OURS: waited}, notes={"from": note})
