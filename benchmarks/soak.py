"""Whether memory stays flat over a long run: `python -m benchmarks.soak --minutes 60 [--fit]`.

Trains a small network with everything on (windows, evaluations, checkpoints, trackers), samples the resident memory of
the process every few seconds, and prints its slope over the second half: what is still allocated then would grow for
ever. Every checkpoint leaves some 20 to 50 KB in Orbax and tensorstore; here there is one in about 20 seconds.

With `--fit`, Keras's `fit` trains new models of the same kind in short calls, as a search over settings does. With
`--json`, the result is added to a file of results, beside that of the other one.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plot
from benchmarks.results import OURS, Case, Results, new_results

LIMIT = 2.0
"""Megabytes per minute: a run of a week would grow by 20 GB at this slope."""


def slope(samples: list[tuple[float, float]]) -> float:
    """Returns the growth of the second half of the samples, in megabytes per minute: a line by least squares."""
    half = samples[len(samples) // 2 :]
    if len(half) < 3:
        return 0.0
    seconds, sizes = np.array(half).T
    return float(np.polyfit(seconds / 60, sizes, 1)[0])


def resident_mb() -> float:
    """Returns the resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Sampler(threading.Thread):
    """Samples the memory every so many seconds."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self._every, self._begin = every, time.monotonic()
        self._done = threading.Event()
        self.samples: list[tuple[float, float]] = []

    def run(self) -> None:
        while not self._done.wait(self._every):
            self.samples.append((time.monotonic() - self._begin, resident_mb()))

    def stop(self) -> None:
        self._done.set()
        self.join()


def train(minutes: float) -> int:
    """Trains one run for so long, as users do; returns its steps."""
    import keras

    from everstep.experiment import run_experiment
    from everstep.experiment_config import ExperimentConfig
    from everstep.loop.hooks import Hook
    from everstep.task.regression import RegressionTask

    end = time.monotonic() + 60 * minutes

    class Task(RegressionTask):
        """A small network on random numbers."""

        def build_model(self) -> keras.Model:
            layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
            return keras.Sequential([keras.Input((16,)), *layers])

        def build_inputs(self, params: Any, input_context: Any = None) -> Any:
            x = np.random.default_rng(0).random((4096, 16), np.float32)
            return x, x.sum(1, keepdims=True)

    params = ExperimentConfig()
    params.override(
        {"task": {"train_data": {"global_batch_size": 32, "is_training": True}}}
        | {"trainer": {"train_steps": 10**9, "steps_per_loop": 100, "validation_interval": 5000}}
    )
    params.override({"task": {"validation_data": {"global_batch_size": 64}}})
    params.override({"trainer": {"checkpoint_interval": 200_000, "tracking": {"jsonl": True, "system_seconds": 2.0}}})
    done: list[int] = []

    class Stop(Hook):
        """Ends training when the time is up."""

        def on_window_end(self, step: int, logs: Any) -> None:
            done.append(step)
            del done[:-1]
            if time.monotonic() > end:
                self.controller.stop("the time is up")

    with tempfile.TemporaryDirectory() as folder:
        run_experiment(Task(), params, folder, "train_and_eval", hooks=[Stop()], export=False, verbose=False)
    return done[-1]


def fit(minutes: float) -> int:
    """Trains new models with `fit`, one after the other, for so long; returns their steps."""
    import keras

    end, steps = time.monotonic() + 60 * minutes, 0
    x = np.random.default_rng(0).random((4096, 16), np.float32)
    while time.monotonic() < end:
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((16,)), *layers])
        model.compile("adam", "mse")
        model.fit(x, x.sum(1), epochs=5, batch_size=32, verbose=0)
        steps += 5 * 128
    return steps


def add_to(path: Path, case: Case) -> None:
    """Writes a case to a file of results, in place of the one of its name."""
    results = new_results("soak", [], 1, device=False)
    known = Results.read(path).cases if path.exists() else []
    results.cases = [*(each for each in known if each.name != case.name), case]
    results.write(path)


def main() -> int:
    """Prints the memory over time, its slope, and one line of JSON; exit code 1 where it grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two samples")
    parser.add_argument("--fit", action="store_true", help="Keras's fit in place of Everstep")
    parser.add_argument("--json", type=Path, help="the file of results to add this one to")
    parser.add_argument("--plot", type=Path, help="where to draw all results of that file, .svg or .png")
    arguments = parser.parse_args()
    sampler = Sampler(arguments.every)
    sampler.start()
    steps = (fit if arguments.fit else train)(arguments.minutes)
    sampler.stop()
    samples = [
        sample for sample in sampler.samples if sample[0] <= 60 * arguments.minutes
    ]  # without the end of the run
    found = slope(samples)
    for index in range(0, len(samples), max(1, len(samples) // 20)):
        print(f"{samples[index][0]:8.0f} s {samples[index][1]:10.1f} MB")
    print(f"{steps:,} steps; the second half grows by {found:.3f} MB a minute (limit {LIMIT})")
    kept = [[round(value, 1) for value in sample] for sample in samples[:: max(1, len(samples) // 200)]]
    notes = {"steps": steps, "mb_per_minute": round(found, 3), "samples": kept}
    case = Case("fit, new models in short calls" if arguments.fit else f"{OURS}, one run", "MB", {}, notes=notes)
    print(json.dumps({"name": case.name, "unit": case.unit, "values": {}, **notes}))
    if arguments.json:
        add_to(arguments.json, case)
        if arguments.plot:
            plot.draw(Results.read(arguments.json), arguments.plot)
    return 0 if found <= LIMIT else 1


if __name__ == "__main__":
    raise SystemExit(main())
