"""How fast sources become batches: ours beside the plain pipelines that one writes by hand.

Image folders, TFRecord, ArrayRecord, Parquet and Hugging Face datasets are written into a temporary folder. Both sides
of a case read the same files, decode with the same function, and yield batches of NumPy arrays. Where Everstep has no
reader of its own, it is given what a user would pass: a Grain pipeline, a `tf.data.Dataset`, a `datasets.Dataset`, a
dataset by index. Pipelines with workers have `recommended_workers()` of them, which the first line states.
"""

import csv
import io
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import alternate
from benchmarks.options import Options
from benchmarks.results import OURS, Case

SIDE, BATCH, IMAGES, ROWS = 64, 32, 1024, 32_768

Epoch = Callable[[], Iterable[Any]]
"""Returns the batches of one epoch."""


def run(options: Options) -> Iterator[Case]:
    """Yields a case for each source and each way to read it."""
    from everstep.data.workers import recommended_workers
    from everstep.engine import backend

    backend.select((options.installed_backends or ["jax"])[0])
    images = min(options.steps * BATCH, IMAGES) if options.steps else IMAGES
    rows = min(options.steps * BATCH, ROWS) if options.steps else ROWS
    print(f"{images} images of {SIDE} × {SIDE}, {rows} rows, batches of {BATCH}; {recommended_workers()} workers")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, unit, count, epochs in [*_images(folder, images), *_tables(folder, rows)]:
            rounds = {each: _round(epoch, count) for each, epoch in epochs.items()}
            for one in rounds.values():
                one()  # files are in memory then, and functions traced
            yield Case(title, unit, alternate(rounds, options.rounds))
        yield _cpu_per_image(folder, sorted((folder / "images").rglob("*.jpg")))
        yield _data_wait(folder)


def _round(epoch: Epoch, count: int) -> Callable[[], float]:
    def rate() -> float:
        begin = time.perf_counter()
        batches = sum(1 for _ in epoch())
        seconds = time.perf_counter() - begin
        if batches != count // BATCH:
            raise RuntimeError(f"{batches} batches came out of {count} samples")
        return count / seconds

    return rate


def _ours(source: Callable[[], Any]) -> Epoch:
    """Reads a source through a stream, one epoch, in training's order."""
    from everstep.data.config import DataConfig
    from everstep.data.source import make_stream

    config = DataConfig(global_batch_size=BATCH, repeat=False, drop_remainder=True)
    return lambda: make_stream(source(), config, training=True, seed=0)


Ways = list[tuple[str, str, int, dict[str, Epoch]]]


# -- images ------------------------------------------------------------------------------------------------------------


def jpeg(number: int) -> bytes:
    """Returns an image that compresses about as well as a photograph."""
    from PIL import Image

    random = np.random.default_rng(number)
    coarse = random.integers(0, 256, (8, 8, 3), np.uint8).repeat(SIDE // 8, 0).repeat(SIDE // 8, 1)
    image = coarse + random.integers(0, 8, coarse.shape, np.uint8)
    data = io.BytesIO()
    Image.fromarray(image).save(data, "JPEG", quality=85)
    return data.getvalue()


def decode(data: bytes) -> np.ndarray:
    """Decodes an image as one would by hand."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)), np.float32) / 255


class Images:
    """Images of a folder by index, as a dataset of PyTorch has them; labels are the folders' numbers."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path = self.paths[index]
        return decode(path.read_bytes()), int(path.parent.name)


def _images(folder: Path, count: int) -> Ways:
    import tensorflow as tf

    paths = []
    for number in range(count):
        path = folder / "images" / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
        paths.append(path)
    names, labels = [str(path) for path in paths], [int(path.parent.name) for path in paths]

    def load(name: Any, label: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        return tf.ensure_shape(tf.cast(image, tf.float32) / 255, (SIDE, SIDE, 3)), label

    def dataset() -> Any:
        pairs = tf.data.Dataset.from_tensor_slices((names, labels)).shuffle(count, seed=1)
        images = pairs.map(load, num_parallel_calls=tf.data.AUTOTUNE)
        return images.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    plain = {"tf.data": lambda: dataset().as_numpy_iterator()}
    by_grain = {"Grain": lambda: _grain(Images(paths)).to_iter_dataset()}
    return [
        ("JPEG folder as a tf.data.Dataset", "images/s", count, plain | {OURS: _ours(dataset)}),
        ("JPEG folder as a Grain dataset", "images/s", count, by_grain | {OURS: _ours(lambda: _grain(Images(paths)))}),
        (
            "JPEG folder as a dataset by index",
            "images/s",
            count,
            plain | by_grain | {OURS: _ours(lambda: Images(paths))},
        ),
        (
            "JPEG folder by ImageSource",
            "images/s",
            count,
            plain | {"Pillow loop": lambda: _pillow_loop(paths), OURS: _image_source(folder / "images")},
        ),
        ("JPEG folder as a PyDataset", "images/s", count, plain | {OURS: _ours(lambda: _py_dataset(paths))}),
        *_records(folder, count),
        *_array_records(folder, count),
    ]


def _pillow_loop(paths: list[Path]) -> Iterator[Any]:
    """Yields batches as a hand-written loop does, in one thread: shuffled, decoded, stacked."""
    images, order = Images(paths), np.random.default_rng(1).permutation(len(paths)).tolist()
    for start in range(0, len(paths) - BATCH + 1, BATCH):
        x, y = zip(*(images[number] for number in order[start : start + BATCH]), strict=True)
        yield np.stack(x), np.array(y)


def _image_source(folder: Path) -> Epoch:
    """Reads the folder as `image/folder` does; it yields bytes, which the device casts."""
    from everstep.data.images import ImageDataConfig, ImageSource
    from everstep.data.source import make_stream

    config = ImageDataConfig(
        input_path=str(folder), size=SIDE, global_batch_size=BATCH, repeat=False, drop_remainder=True
    )
    source = ImageSource(config)
    return lambda: make_stream(source, config, training=True, seed=0)


def _cpu_per_image(folder: Path, paths: list[Path]) -> Case:
    """Returns the CPU time of an image, in milliseconds: it does not depend on what else the machine does."""
    ways: dict[str, Epoch] = {"Pillow loop": lambda: _pillow_loop(paths), OURS: _image_source(folder / "images")}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, epoch in ways.items():
            begin = time.process_time()
            for _ in epoch():
                pass
            found[name].append((time.process_time() - begin) / len(paths) * 1000)
    return Case("JPEG folder, CPU time of an image", "ms", found)


def _grain(source: Any) -> Any:
    import grain

    return grain.MapDataset.source(source).seed(1).shuffle().batch(BATCH, drop_remainder=True)


def _py_dataset(paths: list[Path]) -> Any:
    import keras

    from everstep.data.workers import recommended_workers

    class Batches(keras.utils.PyDataset):
        """Batches of the folder, computed by threads."""

        def __len__(self) -> int:
            return len(paths) // BATCH

        def __getitem__(self, index: int) -> Any:
            images = Images(paths[index * BATCH : (index + 1) * BATCH])
            x, y = zip(*(images[number] for number in range(BATCH)), strict=True)
            return np.stack(x), np.array(y)

    return Batches(workers=recommended_workers())


def _records(folder: Path, count: int) -> Ways:
    """TFRecord files of PNG images: `get_train_ds` beside the plain pipeline, with the same shuffle buffer."""
    import tensorflow as tf

    from everstep.data.tfrecord import SHUFFLE_BUFFER, get_train_ds
    from everstep.data.tfrecord_writing import write_arrays

    images = np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
    images = images // 32 * 32
    write_arrays(str(folder / "records"), "train", {"image": images, "number": np.arange(count)}, shards=8)

    def parse(example: Any) -> Any:
        features = {"image": tf.io.FixedLenFeature([], tf.string), "number": tf.io.FixedLenFeature([], tf.int64)}
        parsed = tf.io.parse_single_example(example, features)
        image = tf.image.decode_png(parsed["image"], channels=3)
        return tf.ensure_shape(tf.cast(image, tf.float32) / 255.0, (SIDE, SIDE, 3)), parsed["number"]

    def plain() -> Any:
        files = tf.data.Dataset.list_files(f"{folder}/records/train-*.tfrec")
        records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        samples = records.shuffle(SHUFFLE_BUFFER).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        return samples.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

    ours = get_train_ds(str(folder / "records"), lambda example: parse(example), BATCH, shuffle_buffer=SHUFFLE_BUFFER)
    return [("TFRecord of PNG images", "images/s", count, {"tf.data": plain, OURS: lambda: iter(ours)})]


def _array_records(folder: Path, count: int) -> Ways:
    import grain
    from array_record.python import array_record_module

    path = str(folder / "images.array_record")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    for number in range(count):
        writer.write(jpeg(number))
    writer.close()

    def dataset() -> Any:
        images = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(path)).seed(1).shuffle().map(decode)
        return images.batch(BATCH, drop_remainder=True)

    ways = {"Grain": lambda: dataset().to_iter_dataset(), OURS: _ours(dataset)}
    return [("ArrayRecord of JPEG images", "images/s", count, ways)]


# -- tables ------------------------------------------------------------------------------------------------------------


def _tables(folder: Path, count: int) -> Ways:
    """Parquet and Hugging Face datasets: 16 floats and a label in each row."""
    import datasets
    import pyarrow
    import pyarrow.parquet as pq

    datasets.disable_progress_bars()
    random = np.random.default_rng(0)
    columns = {f"x{number}": random.random(count, np.float32) for number in range(16)}
    columns["label"] = random.integers(0, 10, count)
    path = folder / "rows.parquet"
    pq.write_table(pyarrow.table(columns), path, row_group_size=8192)
    names = list(columns)[:-1]

    def by_hand() -> Iterator[Any]:
        for batch in pq.ParquetFile(path).iter_batches(BATCH):
            x = np.stack([batch.column(name).to_numpy() for name in names], axis=1)
            yield x, batch.column("label").to_numpy()

    # A dataset is read as it is stored: the features as one column, in Arrow's own file.
    rows = np.stack([columns[name] for name in names], axis=1)
    features = datasets.Features(
        {"x": datasets.List(datasets.Value("float32"), length=16), "label": datasets.Value("int64")}
    )
    table = datasets.Dataset.from_dict({"x": rows, "label": columns["label"]}, features=features)
    shuffled = table.shuffle(seed=1).with_format("numpy")
    return [
        ("Parquet as a generator of batches", "rows/s", count, {"pyarrow": by_hand, OURS: _ours(lambda: by_hand)}),
        (
            "Hugging Face dataset",
            "rows/s",
            count,
            {
                "datasets": lambda: shuffled.iter(BATCH, drop_last_batch=True),
                "tf.data": lambda: table.to_tf_dataset(
                    BATCH, shuffle=True, drop_remainder=True, prefetch=True
                ).as_numpy_iterator(),
                OURS: _ours(lambda: table),
            },
        ),
    ]


# -- training ----------------------------------------------------------------------------------------------------------


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
