"""One process of a run on one backend: `python -m benchmarks.process_loop jax`, with coordinates or without.

With `--service`, a process without coordinates takes the way of several all the same: it starts the coordination
service, writes heartbeats, broadcasts the length of each call, and agrees before each call, with itself.
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.engine import backend

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("--service", action="store_true")
    given = parser.parse_args()
    backend.select(given.backend)

from benchmarks import keras_loops
from benchmarks.contenders import serve
from everstep import gang
from everstep.engine.call_agreement import CallAgreement
from everstep.experiment import create_trainer, run_experiment
from everstep.launch.child_gang import reserve_port


def use_service() -> None:
    """Makes this process a gang of one that talks through the coordination service."""
    with reserve_port("127.0.0.1") as held:
        found = gang.Coordinates(f"127.0.0.1:{held.getsockname()[1]}", 0, 1)
        gang._joined = gang.service.ServiceGang(found, [found.this_process()], 60, given.backend == "jax")

    def stops(agreement: CallAgreement, requested: Callable[[], bool]) -> bool:
        return gang.is_true_of_any(agreement.gang, "a call", requested())

    CallAgreement.stops = stops  # type: ignore[method-assign]


@functools.cache
def _warm_trainer(network: str) -> Any:
    """Returns a trainer that has compiled everything; it is kept for all rounds."""
    params = keras_loops._params(network, 10**9)
    trainer = create_trainer(params, keras_loops._task(network), train=True, evaluate=False)
    for _ in range(6):
        len(trainer.train(keras_loops.BLOCK))
    return trainer


def window(network: str, steps: int) -> float:
    """Trains on for a moment, and reads the logs; returns steps per second."""
    trainer = _warm_trainer(network)
    begin = time.perf_counter()
    len(trainer.train(steps))
    return steps / (time.perf_counter() - begin)


def train(network: str, batch: int, warm: int, steps: int, directory: str) -> float:
    """Trains a run in a directory that all its processes see; returns steps per second after the first ones."""
    total = warm + max(steps // keras_loops.BLOCK, 1) * keras_loops.BLOCK
    timed = keras_loops.TimedTrainer
    timed.counted = warm, total
    task, params = keras_loops._task(network), keras_loops._params(network, total)
    params.override({"task": {"train_data": {"global_batch_size": batch}}})
    trainer = create_trainer(params, task, train=True, evaluate=False, trainer_cls=timed)
    run_experiment(task, params, Path(directory), "train", trainer=trainer, export=False)
    return (total - warm) / (timed.marks[total] - timed.marks[warm])


if __name__ == "__main__":
    if given.service:
        use_service()
    else:
        backend.join_gang()
    backend.prepare(0)
    serve({"train": train, "window": window})
