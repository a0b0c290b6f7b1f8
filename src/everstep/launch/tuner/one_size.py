"""One batch size, tried in this process: a few real training steps, and an evaluation step."""

import textwrap
import time

from everstep.data import nest
from everstep.engine import devices
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig
from everstep.launch.tuner.joining import joined
from everstep.launch.tuner.oom import is_out_of_memory
from everstep.launch.tuner.sizes import Tried
from everstep.loop.trainer import Trainer
from everstep.task.task import Task

_KEY = "task.train_data.global_batch_size"


def try_size(params: ExperimentConfig, task: Task, size: int, evaluate: bool) -> Tried:
    """Trains some steps with a batch size, as a run would, and evaluates a batch; returns how it went.

    Args:
      params: The experiment's configuration.
      task: Its task.
      size: Samples in a batch.
      evaluate: Whether to evaluate, too.

    Raises:
      UsageError: The configuration cannot be used, or its data does not follow `global_batch_size`.
      Exception: Whatever else goes wrong; want of memory is no error.
    """
    try:
        with joined(with_size(params, size), task, evaluate) as trainer:
            _require_size(trainer, size)
            rate = _samples_per_second(trainer, size)
            if evaluate:
                trainer.evaluate(1)
            batches = trainer.train_stream.batches_per_epoch if trainer.train_stream is not None else None
            peaks = devices.peak_bytes(), devices.host_peak_bytes()
            return Tried(size, True, rate, *peaks, samples=batches and batches * size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return Tried(size, False, note=_first_line(error))


def with_size(params: ExperimentConfig, size: int) -> ExperimentConfig:
    """Returns the configuration with another batch size."""
    return params.replace(task={"train_data": {"global_batch_size": size}})


def _require_size(trainer: Trainer, size: int) -> None:
    found = int(nest.flatten(trainer.train_example)[0].shape[0])
    if found != size:
        raise UsageError(
            f"{_KEY}: received {size}, but a batch has {found} samples: the data is cut into batches where the task "
            "makes it, and does not follow this key; try sizes there"
        )


def _samples_per_second(trainer: Trainer, size: int) -> float:
    """Returns the rate of a window, after one that compiles whatever it needs."""
    trainer.train(2)
    steps = trainer.engine.pace.length(100, 100)
    trainer.train(steps)
    trainer.engine.wait()
    begin = time.perf_counter()
    trainer.train(steps)
    trainer.engine.wait()
    return steps * size / (time.perf_counter() - begin)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0], 80, placeholder=" …")
