"""One contender of the zoo in a process of its own: `python -m benchmarks.zoo_process U-Net everstep`.

Each process compiles, tunes and trains by itself: libraries keep their choices of kernels in the process, so that a
contender that runs second in one is given those of the first. The last line is JSON.
"""

import argparse
import contextlib
import json
import logging
import os
import statistics
import sys
import time
from typing import Any

import filelock

from benchmarks import zoo

PER_EXECUTION = 20


def main() -> None:
    """Trains one model with one contender, and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("contender", choices=["fit", "fit20", "everstep", *zoo.PLAIN.values()])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="of an epoch, at whose end ours saves (default 100)")
    parser.add_argument("--directory")
    parser.add_argument("--device-lock", help="a file whose lock a process holds while it uses the device")
    parser.add_argument("--deterministic", choices=["auto", "true", "false"], default="auto")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--again", action="store_true", help="resume the run of --directory for as many epochs")
    options = parser.parse_args()
    said = Said()
    logging.getLogger("everstep").addHandler(said)
    with contextlib.redirect_stdout(sys.stderr):
        import_packages(options.contender)
        with filelock.FileLock(options.device_lock) if options.device_lock else contextlib.nullcontext():
            figures = measured(options)
            print(json.dumps(figures | ({"said": said.lines} if said.lines else {})), file=sys.__stdout__, flush=True)
            os._exit(0)  # before the lock is released, the device is free


def import_packages(contender: str) -> None:
    """Imports what takes long, and needs no device."""
    if contender == "everstep":
        import everstep

        _ = everstep.fit  # with what it imports, as `fit` comes with Keras
    if contender in zoo.PLAIN.values():
        from benchmarks import zoo_torch  # noqa: F401
    from benchmarks import zoo_models  # noqa: F401


class Said(logging.Handler):
    """Keeps the warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage()[:300])


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of the contender."""
    import keras

    if options.contender in zoo.PLAIN.values():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else products are not deterministic
        from benchmarks import zoo_torch

        small, steps = options.small, options.steps
        epochs = zoo_torch.trained(options.model, options.contender, small, steps, options.epochs)
    else:
        epochs = trained_with_keras(options)
    found: dict[str, Any] = {
        "first_epoch": round(epochs[0], 2) if epochs else None,
        "step_ms": round(1000 * statistics.median(epochs[1:]) / options.steps, 3) if len(epochs) > 1 else None,
        "peak_bytes": peak_bytes(keras.backend.backend()),
    }
    if options.directory and os.path.exists(os.path.join(options.directory, "run.json")):
        with open(os.path.join(options.directory, "run.json"), encoding="utf-8") as file:
            record = json.load(file)
        found |= {"digest": record.get("digest"), "exactness": record.get("exactness")}
        found["attempts"] = len(record["attempts"])
    return found


def trained_with_keras(options: argparse.Namespace) -> list[float]:
    """Trains with `fit` or ours; returns the seconds of each epoch, the first one from the call on."""
    import keras

    from benchmarks import zoo_models

    trained = zoo_models.build(options.model, options.small, options.steps)
    stamps: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stamps.append(time.perf_counter()))
    call = {"batch_size": trained.batch, "epochs": options.epochs, "verbose": 0, "callbacks": [clock]}
    begin = time.perf_counter()
    if options.contender == "everstep":
        import everstep

        deterministic = {"auto": None, "true": True, "false": False}[options.deterministic]
        call |= {"epochs": 2 * options.epochs, "allow_change": "epochs"} if options.again else {}
        own = {"model_dir": options.directory, "deterministic": deterministic, "seed": 0, "export": []}
        everstep.fit(trained.model, trained.x, trained.y, **own, **call)
    else:
        trained.model.steps_per_execution = PER_EXECUTION if options.contender == "fit20" else 1
        trained.model.fit(trained.x, trained.y, **call)
    return [after - before for before, after in zip([begin, *stamps], stamps, strict=False)]


def peak_bytes(backend: str) -> int | None:
    """Returns the most memory of the device that was in use."""
    if backend == "jax":
        import jax

        stats = jax.local_devices()[0].memory_stats() or {}
        return stats.get("peak_bytes_in_use")
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None


if __name__ == "__main__":
    main()
