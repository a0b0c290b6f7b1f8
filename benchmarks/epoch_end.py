"""What the end of an epoch costs: ms of a step, and of what follows the last one, with and without checkpoints.

    KERAS_BACKEND=jax python -m benchmarks.epoch_end ResNet50 [--steps 40] [--epochs 6] [--small]

A model of the zoo trains with `fit`, with `everstep.fit` that keeps nothing, and with one that saves after each epoch.
The shorter an epoch, the more its end counts. For ours, the time of the loop is divided: the steps of a window, and
what follows it (logs, callbacks, the evaluation, the save), of which the save, and the wait for the one before.

The last line is JSON.
"""

import argparse
import contextlib
import functools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras

import everstep
from benchmarks import zoo
from everstep.loop.controller import Controller
from everstep.loop.saver import Saver

VARIANTS = ("fit", "Everstep, nothing kept", "Everstep, a save per epoch")
PARTS = {
    "steps": (Controller, "_train_window"),
    "after the window": (Controller, "_finish_window"),
    "save": (Saver, "save"),
    "wait for the save before": (Saver, "wait"),
}
"""The methods of the loop whose time is counted; the later ones are part of the second."""


def main() -> None:
    """Prints a line for each variant, then all as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epoch_end", description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=zoo.MODELS)
    parser.add_argument("--steps", type=int, default=40, help="of an epoch (default 40)")
    parser.add_argument("--epochs", type=int, default=6, help="of which all but the first two count (default 6)")
    parser.add_argument("--small", action="store_true", help="the sizes of the tests")
    options = parser.parse_args()
    figures = {}
    with contextlib.redirect_stdout(sys.stderr):
        for variant, found in measured(options.model, options.steps, options.epochs, options.small):
            print(f"{variant:28}{found['step_ms']:8.3f} ms a step  {found['ms per epoch']}", file=sys.__stdout__)
            figures[variant] = found
    print(json.dumps({"model": options.model, "backend": keras.backend.backend(), "steps": options.steps, **figures}))


def measured(model: str, steps: int, epochs: int, small: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the figures of each variant: ms of a step, and of the parts of an epoch."""
    from benchmarks import zoo_models

    trained = zoo_models.build(model, small, steps)
    call = {"batch_size": trained.batch, "epochs": epochs, "verbose": 0}
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as folder, counted() as spent:
            ends: list[tuple[float, dict[str, float]]] = []

            def note(epoch: int, logs: Any, ends: Any = ends, spent: Any = spent) -> None:
                ends.append((time.perf_counter(), dict(spent)))

            own = {"callbacks": [keras.callbacks.LambdaCallback(on_epoch_end=note)], **call}
            if variant == "fit":
                trained.model.fit(trained.x, trained.y, **own)
            else:
                kept = {"model_dir": f"{folder}/run", "export": []} if "save" in variant else {}
                everstep.fit(trained.model, trained.x, trained.y, seed=0, **kept, **own)
        seconds = [after - before for (before, _), (after, _) in zip(ends[1:], ends[2:], strict=False)]
        parts = {name: round(1000 * (ends[-1][1][name] - ends[1][1][name]) / len(seconds), 1) for name in spent}
        yield variant, {"step_ms": round(1000 * statistics.median(seconds) / steps, 3), "ms per epoch": parts}


@contextlib.contextmanager
def counted() -> Iterator[dict[str, float]]:
    """Counts the seconds of the methods of `PARTS` inside the block."""
    spent = dict.fromkeys(PARTS, 0.0)
    with contextlib.ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            original = getattr(owner, method)
            stack.callback(setattr, owner, method, original)
            setattr(owner, method, _timed(original, name, spent))
        yield spent


def _timed(original: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - begin

    return timed


if __name__ == "__main__":
    main()
