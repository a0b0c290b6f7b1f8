"""The ways to read the files of the suite `input`, one in a process of its own.

`python -m benchmarks.input_ways '{"case": "JPEG folder by ImageSource", "way": "tf.data", …}'` answers a round with its
rate. Ways are run if their packages are installed. All ways of a case yield batches of the same size and type, with the
same number of workers: threads or processes, as each library has them.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import serve
from benchmarks.results import OURS

BATCH = 32
SIDE = 64  # of the small images
PHOTO, SCALED = (375, 500), 224  # of the photographs, and what they are scaled to
FEATURES = [f"x{number}" for number in range(16)]
_AHEAD = 4  # batches that a worker prepares at most before they are needed

Epoch = Callable[[], Iterable[Any]]
"""Returns the batches of one epoch."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a way reads, and how.

    Attributes:
      folder: Where the files are.
      workers: How many threads or processes prepare batches.
      count: How many samples there are.
    """

    folder: Path
    workers: int
    count: int

    def images(self, photos: bool = False) -> list[Path]:
        """Returns the image files."""
        return sorted((self.folder / ("photos" if photos else "images")).rglob("*.jpg"))


def _our_config(**values: Any) -> Any:
    from everstep.data.config import DataConfig

    return DataConfig(global_batch_size=BATCH, repeat=False, drop_remainder=True, **values)


def _ours(source: Any) -> Epoch:
    """Reads a source through a stream, one epoch, in training's order."""
    from everstep.data.source import make_stream

    config = _our_config()
    return lambda: make_stream(source, config, training=True, seed=0)


# -- images ------------------------------------------------------------------------------------------------------------


def decoded(data: bytes) -> np.ndarray:
    """Decodes an image as one would by hand."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)))


def scaled(data: bytes) -> np.ndarray:
    """Decodes a photograph, scales its shorter side, and crops it, as one would by hand."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    scale = SCALED / min(image.size)
    width, height = round(image.width * scale), round(image.height * scale)
    left, upper = (width - SCALED) // 2, (height - SCALED) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image.crop((left, upper, left + SCALED, upper + SCALED)))


class Images:
    """Images of a folder by index, as a dataset of PyTorch has them; labels are the folders' numbers."""

    def __init__(self, paths: list[Path], decode: Callable[[bytes], np.ndarray] = decoded) -> None:
        self.paths, self.decode = paths, decode

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path = self.paths[index]
        return self.decode(path.read_bytes()), int(path.parent.name)


def _dataset(setting: Setting, photos: bool = False) -> Any:
    import tensorflow as tf

    paths = setting.images(photos)
    names, labels = [str(path) for path in paths], [int(path.parent.name) for path in paths]

    def load(name: Any, label: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        if not photos:
            return tf.ensure_shape(image, (SIDE, SIDE, 3)), label
        size = tf.cast(tf.shape(image)[:2], tf.float32)
        height_and_width = tf.cast(tf.round(size * SCALED / tf.reduce_min(size)), tf.int32)
        image = tf.image.resize(image, height_and_width, antialias=True)
        image = tf.image.resize_with_crop_or_pad(image, SCALED, SCALED)
        return tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8), label

    pairs = tf.data.Dataset.from_tensor_slices((names, labels)).shuffle(len(paths), seed=1)
    images = pairs.map(load, num_parallel_calls=setting.workers)
    batches = images.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return _with_threads(batches, setting.workers)


def _with_threads(dataset: Any, workers: int) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    return dataset.with_options(options)


def _tf_data(setting: Setting, photos: bool = False) -> Epoch:
    dataset = _dataset(setting, photos)
    return lambda: dataset.as_numpy_iterator()


def _grain_pipeline(source: Any, workers: int) -> Any:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # which Grain's workers ask for
    batches = grain.MapDataset.source(source).seed(1).shuffle().repeat().batch(BATCH, drop_remainder=True)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=_AHEAD)
    return batches.to_iter_dataset().mp_prefetch(options)


def _grain(setting: Setting, photos: bool = False) -> Epoch:
    source = Images(setting.images(photos), scaled if photos else decoded)
    return _Endless(_grain_pipeline(source, setting.workers), setting)


class _Endless:
    """Reads one iterator epoch after epoch: opening it again would start its processes again."""

    def __init__(self, source: Iterable[Any], setting: Setting) -> None:
        self._batches, self._setting = iter(source), setting

    def __call__(self) -> Iterator[Any]:
        return (next(self._batches) for _ in range(self._setting.count // BATCH))

    def empty_buffers(self) -> None:
        """Reads what was prepared while others had their turn."""
        for _ in range(_AHEAD * max(self._setting.workers, 1)):
            next(self._batches)


def stacked(samples: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Makes a batch of samples, where PyTorch would make tensors."""
    x, y = zip(*samples, strict=True)
    return np.stack(x), np.array(y)


def _loader(dataset: Any, workers: int, **values: Any) -> Any:
    import torch

    return torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0, **values
    )


def _torch(setting: Setting, photos: bool = False) -> Epoch:
    """A DataLoader over the folder; torchvision's dataset and transforms where it is installed."""
    if importlib.util.find_spec("torchvision") is None:
        loader = _loader(Images(setting.images(photos), scaled if photos else decoded), setting.workers)
        return lambda: loader
    from torchvision import datasets
    from torchvision.transforms import v2

    steps = [v2.Resize(SCALED), v2.CenterCrop(SCALED)] if photos else []
    transform = v2.Compose([*steps, v2.PILToTensor()])
    folder = setting.folder / ("photos" if photos else "images")
    loader = _loader(datasets.ImageFolder(str(folder), transform), setting.workers)
    return lambda: loader


def _pillow_loop(setting: Setting, photos: bool = False) -> Epoch:
    """A hand-written loop in one thread: shuffled, decoded, stacked."""
    images = Images(setting.images(photos), scaled if photos else decoded)

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng(1).permutation(len(images)).tolist()
        for start in range(0, len(images) - BATCH + 1, BATCH):
            yield stacked([images[number] for number in order[start : start + BATCH]])

    return epoch


def _image_source(setting: Setting, photos: bool = False) -> Epoch:
    from everstep.data.images import ImageDataConfig, ImageSource
    from everstep.data.source import make_stream

    config = ImageDataConfig(
        input_path=str(setting.folder / ("photos" if photos else "images")),
        size=SCALED if photos else SIDE,
        global_batch_size=BATCH,
        repeat=True,
        drop_remainder=True,
        workers=setting.workers,
    )
    stream = make_stream(ImageSource(config), config, training=True, seed=0)
    return _Endless(stream, setting)


def _py_dataset(setting: Setting) -> Epoch:
    dataset = _batches_of_keras()(setting.images(), setting.workers)
    return _ours(dataset)


@functools.cache
def _batches_of_keras() -> Any:
    import keras

    class Batches(keras.utils.PyDataset):
        """Batches of the folder, computed by threads."""

        def __init__(self, paths: list[Path], workers: int) -> None:
            super().__init__(workers=workers)
            self.images = Images(paths)

        def __len__(self) -> int:
            return len(self.images) // BATCH

        def __getitem__(self, index: int) -> Any:
            return stacked([self.images[index * BATCH + number] for number in range(BATCH)])

    return Batches


def _records(setting: Setting) -> Any:
    """Returns the plain pipeline over TFRecord files of PNG images, with our shuffle buffer."""
    import tensorflow as tf

    from everstep.data.tfrecord.dataset import SHUFFLE_BUFFER

    def epoch() -> Any:
        files = tf.data.Dataset.list_files(f"{setting.folder}/records/train-*.tfrec")
        records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        samples = records.shuffle(SHUFFLE_BUFFER).map(parse_record, num_parallel_calls=tf.data.AUTOTUNE)
        return samples.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

    return epoch


def parse_record(example: Any) -> Any:
    """Returns the image and the number of a serialised example."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "number": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.io.parse_single_example(example, features)
    image = tf.image.decode_png(parsed["image"], channels=3)
    return tf.ensure_shape(tf.cast(image, tf.float32) / 255.0, (SIDE, SIDE, 3)), parsed["number"]


def _our_records(setting: Setting) -> Epoch:
    from everstep.data.tfrecord.dataset import SHUFFLE_BUFFER, get_train_ds

    ours = get_train_ds(str(setting.folder / "records"), parse_record, BATCH, shuffle_buffer=SHUFFLE_BUFFER)
    return lambda: iter(ours)


def _array_record(setting: Setting) -> Any:
    import grain

    source = grain.sources.ArrayRecordDataSource(str(setting.folder / "images.array_record"))
    images = grain.MapDataset.source(source).seed(1).shuffle().map(decoded)
    return images.batch(BATCH, drop_remainder=True)


# -- tables ------------------------------------------------------------------------------------------------------------


def _by_hand(setting: Setting) -> Epoch:
    """Batches of a Parquet file in its order, as a generator."""
    import pyarrow.parquet as pq

    def epoch() -> Iterator[Any]:
        for batch in pq.ParquetFile(setting.folder / "rows.parquet").iter_batches(BATCH):
            x = np.stack([batch.column(name).to_numpy() for name in FEATURES], axis=1)
            yield x, batch.column("label").to_numpy()

    return epoch


def _parquet_source(setting: Setting) -> Epoch:
    from everstep.data import ParquetSource

    return _ours(ParquetSource(str(setting.folder / "rows.parquet"), x=FEATURES, y="label"))


def _table(setting: Setting) -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_from_disk(str(setting.folder / "table"))


def _hugging_face(setting: Setting) -> Epoch:
    shuffled = _table(setting).shuffle(seed=1).with_format("numpy")
    return lambda: shuffled.iter(BATCH, drop_last_batch=True)


def _hugging_face_in_tf(setting: Setting) -> Epoch:
    table = _table(setting)
    return lambda: table.to_tf_dataset(BATCH, shuffle=True, drop_remainder=True, prefetch=True).as_numpy_iterator()


def _hugging_face_in_torch(setting: Setting) -> Epoch:
    loader = _loader(_table(setting).with_format("torch"), 0)
    return lambda: loader


Way = tuple[tuple[str, ...], Callable[[Setting], Epoch]]
"""The packages that a way needs, and the way."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """A case: several ways to read the same samples.

    Attributes:
      unit: Of their rates.
      ways: The ways by name.
    """

    unit: str
    ways: dict[str, Way]


def _folder(photos: bool) -> Compared:
    def of(way: Callable[..., Epoch]) -> Callable[[Setting], Epoch]:
        return lambda setting: way(setting, photos)

    ways: dict[str, Way] = {
        "tf.data": (("tensorflow",), of(_tf_data)),
        "Grain": (("grain",), of(_grain)),
        "DataLoader": (("torch",), of(_torch)),
        "Pillow loop": ((), of(_pillow_loop)),
        OURS: ((), of(_image_source)),
    }
    return Compared("images/s", ways)


CASES: dict[str, Compared] = {
    "JPEG folder by ImageSource": _folder(photos=False),
    "photographs, scaled, by ImageSource": _folder(photos=True),
    "JPEG folder as a tf.data.Dataset": Compared(
        "images/s",
        {
            "tf.data": (("tensorflow",), _tf_data),
            OURS: (("tensorflow",), lambda setting: _ours(_dataset(setting))),
        },
    ),
    "JPEG folder as a Grain dataset": Compared(
        "images/s",
        {
            "Grain": (("grain",), _grain),
            OURS: (
                ("grain",),
                lambda setting: _Endless(_ours(_grain_pipeline(Images(setting.images()), setting.workers))(), setting),
            ),
        },
    ),
    "JPEG folder as a DataLoader": Compared(
        "images/s",
        {"DataLoader": (("torch",), _torch), OURS: (("torch",), lambda setting: _ours(_torch(setting)()))},
    ),
    "JPEG folder as a dataset by index": Compared(
        "images/s",
        {
            "DataLoader": (("torch",), lambda setting: _no_epoch(_loader(Images(setting.images()), setting.workers))),
            "Pillow loop": ((), _pillow_loop),
            OURS: ((), lambda setting: _by_index(setting)),
        },
    ),
    "JPEG folder as a PyDataset": Compared(
        "images/s", {"tf.data": (("tensorflow",), _tf_data), OURS: (("keras",), _py_dataset)}
    ),
    "TFRecord of PNG images": Compared(
        "images/s", {"tf.data": (("tensorflow",), _records), OURS: (("tensorflow",), _our_records)}
    ),
    "ArrayRecord of JPEG images": Compared(
        "images/s",
        {
            "Grain": (("grain", "array_record"), lambda setting: lambda: _array_record(setting).to_iter_dataset()),
            OURS: (("grain", "array_record"), lambda setting: _ours(_array_record(setting))),
        },
    ),
    "Parquet as a generator of batches": Compared(
        "rows/s", {"pyarrow": ((), _by_hand), OURS: ((), lambda setting: _ours(_by_hand(setting)))}
    ),
    "Parquet by ParquetSource": Compared("rows/s", {"pyarrow": ((), _by_hand), OURS: ((), _parquet_source)}),
    "Hugging Face dataset": Compared(
        "rows/s",
        {
            "datasets": (("datasets",), _hugging_face),
            "tf.data": (("datasets", "tensorflow"), _hugging_face_in_tf),
            "DataLoader": (("datasets", "torch"), _hugging_face_in_torch),
            OURS: (("datasets",), lambda setting: _ours(_table(setting))),
        },
    ),
}
"""The cases by name."""


def _no_epoch(loader: Any) -> Epoch:
    return lambda: loader


def _by_index(setting: Setting) -> Epoch:
    from everstep.data.map_dataset import MapDatasetStream

    images = Images(setting.images())
    return _Endless(MapDatasetStream(images, BATCH, shuffle=True, drop_remainder=True, repeat=True), setting)


def installed(case: str) -> list[str]:
    """Returns the ways of a case whose packages are installed."""
    return [
        name
        for name, (packages, _) in CASES[case].ways.items()
        if all(importlib.util.find_spec(package) is not None for package in packages)
    ]


def main() -> None:
    """Serves one way: a round is an epoch, or several."""
    asked = json.loads(sys.argv[1])
    setting = Setting(Path(asked["folder"]), asked["workers"], asked["count"])
    place = _placed if asked["device"] else _kept
    epoch = CASES[asked["case"]].ways[asked["way"]][1](setting)

    def rate(epochs: int) -> float:
        if isinstance(epoch, _Endless):
            epoch.empty_buffers()
        begin = time.perf_counter()
        for _ in range(epochs):
            batches = sum(place(batch) for batch in epoch())
            if batches != setting.count // BATCH:
                raise RuntimeError(f"{batches} batches came out of {setting.count} samples")
        return epochs * setting.count / (time.perf_counter() - begin)

    serve({"rate": rate, "cpu": _cpu_seconds})


def _cpu_seconds() -> float:
    """Returns the processor time of this process and of all below it so far; 0 where there is no /proc."""
    found: dict[int, tuple[int, int]] = {}  # parent and ticks
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text("utf-8", errors="replace").rpartition(")")[2].split()
            found[int(path.parent.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    below, ticks = {os.getpid()}, 0
    for process in sorted(found):
        parent, own = found[process]
        if process in below or parent in below:
            below.add(process)
            ticks += own
    return ticks / os.sysconf("SC_CLK_TCK")


def _kept(batch: Any) -> int:
    return 1


def _placed(batch: Any) -> int:
    """Copies a batch to the accelerator, and waits for that."""
    if "torch" in sys.modules and any(hasattr(leaf, "cuda") for leaf in batch):
        import torch

        for leaf in batch:
            leaf.cuda(non_blocking=True)
        torch.cuda.synchronize()
        return 1
    import jax

    jax.block_until_ready(jax.device_put(batch))
    return 1


if __name__ == "__main__":
    main()
