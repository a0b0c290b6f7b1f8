"""How fast TFRecord files become batches, beside the plain tf.data pipeline: `python -m benchmarks.tfrecord`.

Both read the same files of PNG images through the same function: parse, decode, scale. The plain pipeline is what one
writes by hand: list files, read, shuffle, map in parallel, batch, prefetch. Both shuffle through the same buffer, the
default of `get_train_ds`, at the same place: records that are still encoded, which is cheaper. Only ours has an order
that can be repeated. They take turns, so that other load on the machine affects both; the figure is the median of the
rounds. Beside it are the rate by processor time, which other programs disturb less, and the load of the machine.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from everstep.data.tfrecord import SHUFFLE_BUFFER, get_train_ds
from everstep.data.tfrecord_writing import write_arrays

SIDE, BATCH, FILES = 112, 64, 8


def read_tfrecord(example: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "number": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.io.parse_single_example(example, features)
    image = tf.image.decode_png(parsed["image"], channels=3)
    return tf.ensure_shape(tf.cast(image, tf.float32) / 255.0, (SIDE, SIDE, 3)), parsed["number"]


def write(folder: str, records: int) -> None:
    """Writes images that compress about as well as photographs."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (records, 14, 14, 3), np.uint8)
    images = coarse.repeat(SIDE // 14, axis=1).repeat(SIDE // 14, axis=2)
    images += random.integers(0, 8, images.shape, np.uint8)
    write_arrays(folder, "train", {"image": images, "number": np.arange(records)}, shards=FILES)


def plain(folder: str) -> Callable[[], Iterable[Any]]:
    """Returns the pipeline as it is written by hand; every call reads one epoch."""
    import tensorflow as tf

    files = tf.data.Dataset.list_files(f"{folder}/train-*.tfrec")
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    shuffled = records.shuffle(SHUFFLE_BUFFER)
    samples = shuffled.map(lambda record: read_tfrecord(example=record), num_parallel_calls=tf.data.AUTOTUNE)
    batches = samples.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return batches.as_numpy_iterator


def ours(folder: str) -> Callable[[], Iterable[Any]]:
    """Returns what `get_train_ds` makes of it; every call reads one epoch."""
    dataset = get_train_ds(folder, read_tfrecord, BATCH, shuffle_buffer=SHUFFLE_BUFFER)
    return lambda: iter(dataset)


class Rate(NamedTuple):
    """Records per second, by the clock and by the processor's time."""

    clock: float
    processor: float


def rate(epoch: Callable[[], Iterable[Any]], records: int) -> Rate:
    """Reads one epoch."""
    clock, processor = time.perf_counter(), time.process_time()
    batches = sum(1 for _ in epoch())
    if batches != records // BATCH:
        raise RuntimeError(f"{batches} batches came out of {records} records")
    return Rate(records / (time.perf_counter() - clock), records / (time.process_time() - processor))


def main() -> int:
    """Prints both rates and their ratio; exit code 1 where ours is below 0.95 of the plain one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tfrecord", description=__doc__)
    parser.add_argument("--records", type=int, default=8192, help="images in all (default 8192)")
    parser.add_argument("--rounds", type=int, default=9, help="epochs read by each (default 9)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(folder, arguments.records)
        print(f"{arguments.records} images of {SIDE} x {SIDE} in {FILES} files, batches of {BATCH}; {_machine()}")
        print(f"shuffle buffer {SHUFFLE_BUFFER} encoded records on both sides")
        contenders = {"plain tf.data": plain(folder), "get_train_ds": ours(folder)}
        for epoch in contenders.values():  # files are in memory then, and functions traced
            rate(epoch, arguments.records)
        found: dict[str, list[Rate]] = {name: [] for name in contenders}
        for turn in range(arguments.rounds):
            for name in sorted(contenders, reverse=bool(turn % 2)):
                found[name].append(rate(contenders[name], arguments.records))
    print(f"after {arguments.rounds} rounds each: {_machine()}")
    return _show(found)


def _machine() -> str:
    """Returns how many processors there are, and the load."""
    return f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"


def _show(found: dict[str, list[Rate]]) -> int:
    for name, rates in found.items():
        clock, processor = ([each[at] for each in rates] for at in (0, 1))
        spread = f"(from {min(clock):,.0f} to {max(clock):,.0f})"
        print(
            f"{name:15}{statistics.median(clock):>9,.0f} records/s {spread:24}"
            f"{statistics.median(processor):>9,.0f} records/CPU s"
        )
    pairs = list(zip(found["get_train_ds"], found["plain tf.data"], strict=True))
    clock, processor = (statistics.median(mine[at] / theirs[at] for mine, theirs in pairs) for at in (0, 1))
    print(f"get_train_ds reads {clock:.2f} of the plain rate, {processor:.2f} by CPU time (expected: at least 0.95)")
    return 0 if clock >= 0.95 else 1


if __name__ == "__main__":
    raise SystemExit(main())
