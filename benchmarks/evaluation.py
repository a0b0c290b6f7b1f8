"""How fast samples are evaluated, and in how much memory: `python -m benchmarks evaluation`; `--large`: a million rows.

Three ways to write metrics: over a batch, for one data point in NumPy, and for one data point with a Keras loss that
every call creates anew, as users do. Each run prints rows per second, from start to end, by the clock and by processor
time (the rate of an idle machine), and how much memory grew after the first batch.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from benchmarks.options import Options
from benchmarks.results import OURS, Case
from everstep.evaluation import Accuracy, CrossEntropy, Evaluator, SampleBatch, TopK

BATCH = 256
CLASSES = 10


class Figures(NamedTuple):
    """The rates and the memory of one run."""

    rows_per_second: float
    rows_per_cpu_second: float
    growth_mb: float


def batches(rows: int) -> Iterator[SampleBatch]:
    """Yields samples with images, from a pool: generating them must not count."""
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(CLASSES), BATCH).astype(np.float32)
    labels = random.integers(0, CLASSES, BATCH)
    images = random.integers(0, 256, (BATCH, 28, 28), np.uint8)
    for first in range(0, rows, BATCH):
        size = min(BATCH, rows - first)
        ids = [f"image_{row}.png" for row in range(first, first + size)]
        turned = np.roll(shares, first // BATCH, axis=0)[:size]
        yield SampleBatch(ids, labels[:size], turned, images[:size], {"camera": ["left"] * size})


def points() -> dict[str, Callable[..., Any]]:
    """Three metrics of one data point."""
    return {
        "cross_entropy": lambda y_true, y_pred: -np.log(y_pred[y_true] + 1e-7),
        "accuracy": lambda y_true, y_pred: float(np.argmax(y_pred) == y_true),
        "margin": lambda y_true, y_pred: y_pred[y_true] - np.max(y_pred),
    }


def keras_loss() -> dict[str, Callable[..., Any]]:
    """A Keras loss that is built for each data point."""
    import keras

    def scce_loss(y_true: Any, y_pred: Any) -> Any:
        return keras.losses.SparseCategoricalCrossentropy()(y_true, y_pred)

    return {"sparse categorical ce": scce_loss}


def measure(metrics: Any, rows: int) -> Figures:
    """Evaluates so many rows; returns the rates and the memory."""
    after_first: list[float] = []

    def note(_: int) -> None:
        if not after_first:
            after_first.append(_resident_mb())

    with tempfile.TemporaryDirectory() as directory:
        clock, processor = time.perf_counter(), time.process_time()
        evaluation = Evaluator(metrics).run(batches(rows), directory, "test", progress=note)
        seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
    if evaluation.rows != rows:
        raise RuntimeError(f"{evaluation.rows} rows came out of {rows}")
    return Figures(rows / seconds, rows / cpu_seconds, _peak_mb() - after_first[0])


def run(options: Options) -> Iterator[Case]:
    """Yields a case per way; the run with the most memory comes first, because the peak is that of the process."""
    rows = 1_000_000 if options.large else min(100_000, (options.steps or 100_000) * BATCH)
    yield _case("vectorized, 3 metrics", [CrossEntropy(), Accuracy(), TopK(3)], rows)
    yield _case("per point, 3 NumPy functions", points(), rows // 10)
    measure(keras_loss(), BATCH)  # the backend starts
    yield _case("per point, a Keras loss", keras_loss(), rows // 500)


def _case(name: str, metrics: Any, rows: int) -> Case:
    found = measure(metrics, rows)
    notes = {
        "rows": rows,
        "rows per second of processor time": round(found.rows_per_cpu_second),
        "MB over the first batch": round(found.growth_mb),
    }
    return Case(name, "rows/s", {OURS: [found.rows_per_second]}, notes=notes)


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _peak_mb() -> float:
    """Returns the peak memory of this process; `getrusage` would include its parent's at the start."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**10
