"""Does TPE find better values than random search, at the same number of trials?

`KERAS_BACKEND=jax python -m benchmarks.sweep_samplers` sweeps the shipped experiment `regression/sine`, made short,
with both samplers and ten seeds, in one process. It prints the best validation loss of each after a number of trials,
and how often TPE was better. Both begin with the same random trials: their seeds are the same.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
SPACE = {
    RATE: {"low": 1e-5, "high": 1.0, "log": True},
    "task.model.units": [4, 16, 64],
    "trainer.optimizer_config.optimizer.type": ["adam", "sgd"],
    "task.train_data.global_batch_size": [16, 64, 256],
}


def objective(values: dict[str, Any], directory: Path) -> float:
    """Trains the experiment for a few hundred steps; returns its validation loss, of a diverged run a large one."""
    import everstep
    from everstep.config.sources import nested

    params = everstep.get_exp_config("regression/sine")
    for key, value in values.items():
        params.override(nested(key, value))
    params.override({"trainer": {"train_steps": 200, "steps_per_loop": 200, "validation_interval": 200}})
    task = everstep.get_task(params.task)
    try:
        _, logs = everstep.run_experiment(task, params, directory, export=False, verbose=False, keep=False)
    except everstep.TrainingError:  # not a number
        return 1e3
    return min(float(logs["validation_loss"]), 1e3)


def best_so_far(sampler: str, seed: int, trials: int, folder: Path) -> list[float]:
    """Returns the best loss after each trial."""
    import everstep

    done = everstep.sweep(
        lambda values, directory: objective(values, directory),
        SPACE,
        sampler=sampler,
        seed=seed,
        trials=trials,
        sweep_dir=folder / f"{sampler}-{seed}",
        verbose=False,
    )
    values = [1e3 if trial.value is None else trial.value for trial in done.trials]
    return [min(values[: count + 1]) for count in range(len(values))]


def table(found: dict[str, list[list[float]]], marks: Sequence[int]) -> str:
    """Returns the figures: medians, quartiles, and how often the first sampler was better."""
    lines = [f"{'trials':>8}" + "".join(f"{name:>32}" for name in found) + "    TPE better"]
    for mark in marks:
        cells = []
        for curves in found.values():
            held = sorted(curve[mark - 1] for curve in curves)
            low, middle, high = statistics.quantiles(held, n=4) if len(held) > 1 else held * 3
            cells.append(f"{middle:.5f} ({low:.5f} to {high:.5f})")
        pairs = list(zip(found["tpe"], found["random"], strict=True))
        wins = sum(one[mark - 1] < other[mark - 1] for one, other in pairs)
        ties = sum(one[mark - 1] == other[mark - 1] for one, other in pairs)
        lines.append(
            f"{mark:>8}" + "".join(f"{cell:>32}" for cell in cells) + f"    {wins} of {len(pairs)}, {ties} equal"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Measures, and prints the table; returns whether TPE's median is not better."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--out", default="", help="also write the curves as JSON")
    options = parser.parse_args(arguments)
    found: dict[str, list[list[float]]] = {"tpe": [], "random": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder, "compiled")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        for seed in range(options.seeds):
            for sampler, curves in found.items():
                curves.append(best_so_far(sampler, seed, options.trials, Path(folder)))
            print(f"seed {seed}: tpe {found['tpe'][-1][-1]:.5f}, random {found['random'][-1][-1]:.5f}", flush=True)
    marks = [mark for mark in (10, 15, 20, 30, 50, 100) if mark <= options.trials] or [options.trials]
    print(table(found, marks))
    if options.out:
        Path(options.out).write_text(json.dumps(found))
    last = {name: statistics.median(curve[-1] for curve in curves) for name, curves in found.items()}
    return int(last["tpe"] >= last["random"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
