"""How cost grows: with steps, logged metrics, variables, the size of a checkpoint, and epochs of history.

Each curve has a point per size. Beside it is the exponent of its last decade: 1 where twice as much costs twice as
much, 0 where size does not matter. One above 1.2 grows worse than it should, and is marked.

What variables cost is measured in CPU seconds: on a busy machine a short call is rarely interrupted and a long one
always is, which looks like growth. Their start is compared with that of `model.fit`, each in a process of its own.
"""

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders import ROOT
from benchmarks.options import Options
from benchmarks.results import OURS, Case

WORST = 1.2
"""The exponent from which on a curve is marked."""

FIT = "fit"
PARTS = {
    "a window of 10 steps": "a window of 10 steps, by variables, CPU",
    "a copy to save": "a copy to save, by variables, CPU",
    "a restore": "a restore, by variables, CPU",
    "a checkpoint written": "a checkpoint written, by variables, CPU",
    "a checkpoint read": "a checkpoint read, by variables, CPU",
}
"""The curves over the number of variables, by what is measured."""

MODELS = {"weights": "weights in one layer", "layers": "weights in small layers"}
"""The models of many variables in `growth_process.py`."""


def start_name(count: int, model: str, backend: str) -> str:
    """Returns the name of the case that compares the start with that of `fit`."""
    return f"start, {count:,} {MODELS[model]}, {backend}"


def run(options: Options) -> Iterator[Case]:
    """Yields the points of all curves."""
    from everstep.engine import backend

    yield from starts(options)
    backend.select((options.installed_backends or ["jax"])[0])
    backend.prepare(0)
    for curve in (steps, metrics, variables, checkpoints, history):
        yield from _with_exponents(list(curve(options)))


def _with_exponents(cases: list[Case]) -> list[Case]:
    """Adds to the last point of each series how its cost grows from the point before."""
    by_series: dict[str, list[Case]] = {}
    for case in cases:
        by_series.setdefault(case.series, []).append(case)
    for points in by_series.values():
        if len(points) > 1:
            found = exponent(points[-2], points[-1])
            points[-1].notes["exponent"] = round(found, 2)
            if found > WORST:
                points[-1].notes["grows worse than it should"] = True
    return cases


def exponent(before: Case, after: Case) -> float:
    """Returns the slope between two points on logarithmic axes."""
    return math.log(after.median(OURS) / before.median(OURS)) / math.log((after.x or 1) / (before.x or 1))


def _cpu_seconds(call: Callable[[], Any]) -> float:
    """Returns the CPU seconds of a call, in all threads."""
    begin = time.process_time()
    call()
    return max(time.process_time() - begin, 1e-9)


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return max(time.perf_counter() - begin, 1e-9)


def _sizes(options: Options, *all_sizes: int) -> list[int]:
    """Returns the sizes to measure; the last one only with `--large`, and small ones alone with few `--steps`."""
    kept = list(all_sizes) if options.large else list(all_sizes[:-1])
    return [size for size in kept if options.steps is None or size <= options.steps] or kept[:1]


def _point(series: str, x: int, rounds: int, call: Callable[[], Any]) -> Case:
    return Case(f"{series}: {x:,}", "s", {OURS: [_seconds(call) for _ in range(rounds)]}, series, x)


# -- steps, metrics, variables -----------------------------------------------------------------------------------------


def _task(logged: int = 1, variables: int = 1) -> Any:
    """Returns a task whose step costs next to nothing, with so many logs and variables."""
    import keras

    from everstep.task.regression import RegressionTask

    class Many(keras.layers.Layer):
        """A layer with many variables."""

        def build(self, shape: Any) -> None:
            self.parts = [self.add_weight(shape=(4,), name=f"part_{number}") for number in range(variables)]

        def call(self, x: Any) -> Any:
            # stacked: XLA needs 12 GB to compile a sum of 10,000 terms, in `fit` as well
            return keras.ops.sum(x * keras.ops.sum(keras.ops.stack(self.parts), axis=0), axis=-1, keepdims=True)

    class Task(RegressionTask):
        """A step with many logs."""

        def build_model(self) -> keras.Model:
            inputs = keras.Input((4,))
            return keras.Model(inputs, Many()(inputs))

        def build_inputs(self, params: Any, input_context: Any = None) -> Any:
            x = np.random.default_rng(0).random((1024, 4), np.float32)
            return x, x.sum(1, keepdims=True)

        def train_step(self, *args: Any, **kwargs: Any) -> Any:
            logs = super().train_step(*args, **kwargs)
            loss = next(iter(logs.values()))
            return {**logs, **{f"figure_{number}": loss * number for number in range(1, logged)}}

    return Task()


def _params(steps: int, window: int = 100) -> Any:
    from everstep.experiment_config import ExperimentConfig

    params = ExperimentConfig()
    params.override({"task": {"train_data": {"global_batch_size": 4, "is_training": True}}})
    params.override({"trainer": {"train_steps": steps, "steps_per_loop": window, "checkpoint_interval": 0}})
    return params


def _marks(task: Any, params: Any, wanted: set[int]) -> dict[int, float]:
    """Runs an experiment; returns when some of its steps were reached."""
    from everstep.experiment import run_experiment
    from everstep.loop.hooks import Hook

    marks: dict[int, float] = {}

    class Clock(Hook):
        """Notes when a step was reached."""

        def on_window_end(self, step: int, logs: Any) -> None:
            if step in wanted:
                len(logs)
                marks[step] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        run_experiment(task, params, folder, "train", hooks=[Clock()], export=False, verbose=False)
    return marks


def steps(options: Options) -> Iterator[Case]:
    """Yields the time per step over the length of one run: each point is the second half of what was done by then."""
    lengths = _sizes(options, 1000, 10_000, 100_000, 1_000_000)
    marks = _marks(_task(), _params(lengths[-1]), {step for length in lengths for step in (length, length // 2)})
    for length in lengths:
        per_step = 1e6 * (marks[length] - marks[length // 2]) / (length // 2)
        series = "time per step after so many steps"
        yield Case(f"time per step after: {length:,}", "µs", {OURS: [per_step]}, series, length)


def metrics(options: Options) -> Iterator[Case]:
    """Yields the time of a window of 100 steps, tracked, over the number of logged figures."""
    for logged in _sizes(options, 1, 10, 100, 1000):
        values = []
        for _ in range(options.rounds):
            marks = _marks(_task(logged), _params(4600), {600, 4600})
            values.append((marks[4600] - marks[600]) / 40)
        yield Case(f"window with logs: {logged:,}", "s", {OURS: values}, "a window of 100 steps, by logs", logged)


def variables(options: Options) -> Iterator[Case]:
    """Yields what many variables cost: in a window, in a save, in a resume; CPU seconds."""
    from everstep.checkpoint.orbax import OrbaxCheckpointer
    from everstep.experiment import create_trainer

    for count in _sizes(options, 10, 100, 1000, 10_000):
        trainer = create_trainer(_params(10**9, window=10), _task(variables=count), train=True, evaluate=False)
        for _ in range(3):
            dict(trainer.train(10))
        state, _ = trainer.state()
        with tempfile.TemporaryDirectory() as folder:
            checkpointer = OrbaxCheckpointer(folder)
            steps = itertools.count(1)

            def write(checkpointer: Any = checkpointer, steps: Iterator[int] = steps, state: Any = state) -> None:
                checkpointer.save(next(steps), state, {})
                checkpointer.wait()

            calls = [
                lambda: dict(trainer.train(10)),  # noqa: B023
                trainer.state,
                lambda: trainer.engine.load(state),  # noqa: B023
                write,
                checkpointer.restore,
            ]
            for (name, series), call in zip(PARTS.items(), calls, strict=True):
                values = [_cpu_seconds(call) for _ in range(options.rounds)]
                yield Case(f"{name}, variables: {count:,}", "s", {OURS: values}, series, count)
            checkpointer.close()
        trainer.close()


def starts(options: Options) -> Iterator[Case]:
    """Yields the CPU seconds until the first step is done, beside `fit`'s, with every backend and model."""
    for backend in options.installed_backends:
        for model in MODELS:
            for count in _sizes(options, 100, 1000, 10_000):
                values: dict[str, list[float]] = {FIT: [], OURS: []}
                for _ in range(options.rounds):
                    for contender, found in values.items():
                        found.append(_started(backend, model, count, contender))
                yield Case(start_name(count, model, backend), "CPU s", values)


def _started(backend: str, model: str, count: int, contender: str) -> float:
    """Returns the CPU seconds from the call to the end of its first step, in a new process."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.growth_process", model, str(count), contender]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(result.stderr)
    return float(json.loads(result.stdout.splitlines()[-1])["start"])


# -- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoints(options: Options) -> Iterator[Case]:
    """Yields the time to write a checkpoint and to read it back, over its size."""
    from everstep.checkpoint.orbax import OrbaxCheckpointer

    for megabytes in _sizes(options, 1, 10, 100, 1000, 10_000):
        array = np.random.default_rng(0).random((megabytes, 2**18), np.float32)
        with tempfile.TemporaryDirectory() as folder:
            checkpointer = OrbaxCheckpointer(folder)
            begin = time.perf_counter()
            checkpointer.save(1, {"model/kernel": array}, {"step": 1})
            blocked = time.perf_counter() - begin
            checkpointer.wait()
            written = time.perf_counter() - begin
            read = _seconds(checkpointer.restore)
            checkpointer.close()
        for name, seconds in {"the loop waits": blocked, "written": written, "read": read}.items():
            yield Case(
                f"checkpoint, {name}: {megabytes:,} MB", "s", {OURS: [seconds]}, f"checkpoint in MB, {name}", megabytes
            )


# -- history -----------------------------------------------------------------------------------------------------------


def history(options: Options) -> Iterator[Case]:
    """Yields what earlier epochs cost: to append a row, to resume, to draw the display and the report, to save."""
    import keras

    from everstep.loop.callback_state import CallbackState
    from everstep.report.run_data import read_curves
    from everstep.tracking.history import HistoryTracker
    from everstep.tracking.live_display import LiveMetrics

    for rows in _sizes(options, 10, 1000, 10_000, 100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "history.csv"
            tracker = HistoryTracker(path)
            tracker.start(0)

            def append(first: int, last: int, tracker: HistoryTracker = tracker) -> None:
                for step in range(first, last):
                    tracker.log(step, {"loss": 1 / step, "accuracy": 0.5, "steps_per_second": 100.0}, "train")
                    tracker.log(step, {"validation_loss": 0.2, "validation_accuracy": 0.3}, "validation")
                tracker.flush()

            append(1, rows + 1)
            following = (rows + number // 2 + number % 2 + 1 for number in itertools.count())  # n, n + 1, n + 1, …
            callback = keras.callbacks.History()
            state = CallbackState([callback])
            callback.on_train_begin()
            callback.epoch = list(range(rows))
            callback.history = {
                name: [1 / (row + 1) for row in range(rows)] for name in ("loss", "accuracy", "val_loss")
            }
            arrays, meta = state.state()
            found = {
                "append a row": lambda: append(next(following), next(following)),  # noqa: B023
                "history.csv at a resume": lambda: HistoryTracker(path).start(10**9),  # noqa: B023
                "display at a resume": lambda: LiveMetrics().read(path),  # noqa: B023
                "curves of the report": lambda: read_curves(path, None),  # noqa: B023
                "callbacks in a save": state.state,
                "callbacks at a resume": lambda: state.restore(arrays, meta),  # noqa: B023
            }
            for name, call in found.items():
                yield _point(f"{name}, by rows", rows, options.rounds, call)
