"""A few training steps in this process, with nothing saved: one batch size, or a range of learning rates."""

import contextlib
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from everstep import ExperimentConfig, Task, Trainer
from everstep.data import nest
from everstep.engine import TIMED_CALLS, backend, configured_strategy, entered, precision
from everstep.engine import device_names as devices
from everstep.errors import UsageError
from everstep.loop import ProgressiveTrainer, create_trainer, is_progressive
from everstep.task.optim import find_average
from everstep.tuner.batch_size import KEY, Tried, is_out_of_memory
from everstep.tuner.learning_rate import RangeTest, geometric


@contextlib.contextmanager
def trial_trainer(
    params: ExperimentConfig, task: Task, evaluate: bool, trainer_cls: type[Trainer] = Trainer
) -> Iterator[Trainer]:
    """Yields a trainer without a run, on the configured devices and in the configured precision.

    Args:
      params: The experiment's configuration.
      task: The experiment's task.
      evaluate: Whether the trial evaluates, too.
      trainer_cls: The class of the trainer.

    Raises:
      UsageError: The configuration cannot be used.
    """
    params.validate()
    backend.select(params.runtime.backend)
    with contextlib.ExitStack() as stack:
        stack.enter_context(entered(configured_strategy(params.runtime)))
        stack.enter_context(precision(params.runtime.mixed_precision_dtype))
        trainer = create_trainer(params, task, train=True, evaluate=evaluate, trainer_cls=trainer_cls)
        stack.callback(trainer.close)
        yield trainer


def with_size(params: ExperimentConfig, size: int) -> ExperimentConfig:
    """Returns the configuration with another batch size."""
    return params.replace(task={"train_data": {"global_batch_size": size}})


def try_size(params: ExperimentConfig, task: Task, size: int, evaluate: bool) -> Tried:
    """Trains some steps with a batch size, as a run would, and evaluates a batch; returns the result.

    Args:
      params: The experiment's configuration.
      task: The experiment's task.
      size: Samples in a batch.
      evaluate: Whether to evaluate, too.

    Raises:
      UsageError: The configuration cannot be used, or its data does not follow `global_batch_size`.
      Exception: Any other error; running out of memory is a result.
    """
    try:
        with trial_trainer(with_size(params, size), task, evaluate) as trainer:
            found = int(nest.flatten(trainer.train_example)[0].shape[0])
            if found != size:
                raise UsageError(
                    f"but a batch has {found} samples: the task cuts the batches itself, and does not follow this key",
                    key=KEY,
                    received=size,
                    remedy="try sizes in the task",
                )
            trainer.train(1 + TIMED_CALLS)  # compiles, and measures the pace
            steps = min(100, trainer.engine.call_length.longest)
            trainer.engine.call_length.add(steps)
            trainer.train(steps)  # compiles calls of this length
            trainer.engine.wait()
            begin = time.perf_counter()
            trainer.train(steps)
            trainer.engine.wait()
            rate = steps * size / (time.perf_counter() - begin)
            if evaluate:
                trainer.evaluate(1)
            batches = trainer.train_stream.batches_per_epoch if trainer.train_stream is not None else None
            peaks = devices.peak_bytes(), devices.host_peak_bytes()
            return Tried(size, True, rate, *peaks, samples=batches and batches * size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return Tried(size, False, note=textwrap.shorten(first_line, 80, placeholder=" …"))


def range_test(params: ExperimentConfig, task: Task, first: float, last: float, steps: int) -> RangeTest:
    """Trains from the initial weights at a learning rate that grows from step to step, until the loss diverges.

    The growing rate replaces the optimizer's schedule inside the compiled step, whatever the optimizer is wrapped in. A
    task that is trained in stages stays in its first.

    Args:
      params: The experiment's configuration.
      task: The experiment's task.
      first: The first learning rate.
      last: The last learning rate.
      steps: The number of steps.

    Raises:
      UsageError: The configuration cannot be used, or the task has optimizers of its own.
    """
    base = ProgressiveTrainer if is_progressive(task) else Trainer
    kind = type("RangeTrainer", (_WithSchedule, base), {"schedule": GrowingRate(first, last, steps)})
    with trial_trainer(params, task, evaluate=False, trainer_cls=kind) as trainer:
        _require_one_optimizer(task)
        trainer.task.initialize(trainer.model)  # the initial weights of a new run
        if (average := find_average(trainer.optimizer)) is not None:
            average.start()
        trainer.engine.pull()
        test = RangeTest()
        for rate in geometric(first, last, steps):
            logs = Trainer.train(trainer, 1)  # that of a ProgressiveTrainer would leave the stage
            test.add(rate, float(logs["training_loss"]))
            if test.diverged:
                break
        return test


class GrowingRate(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that is multiplied by the same factor at every step.

    Args:
      first: The learning rate of step 0.
      last: The learning rate of the last step.
      steps: The number of steps.
    """

    def __init__(self, first: float, last: float, steps: int) -> None:
        self.first, self.last, self.steps = first, last, steps

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        share = ops.cast(step, "float32") / float(self.steps - 1)
        return self.first * ops.exp(share * ops.log(ops.cast(self.last / self.first, "float32")))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {"first": self.first, "last": self.last, "steps": self.steps}


class _WithSchedule:
    """A trainer whose optimizer gets another schedule before the step is built."""

    schedule: GrowingRate
    optimizer: Any

    def _build(self, *data: Any) -> None:
        innermost = self.optimizer
        while getattr(innermost, "inner_optimizer", None) is not None:
            innermost = innermost.inner_optimizer
        innermost.learning_rate = self.schedule
        super()._build(*data)  # type: ignore[misc]


def _require_one_optimizer(task: Task) -> None:
    for name, value in vars(task).items():
        if any(isinstance(one, keras.optimizers.Optimizer) for one in nest.flatten([value])):
            raise UsageError(
                "the task has optimizers beside the configured one, and one range cannot judge several",
                key=f"{type(task).__name__}.{name}",
                remedy="try values for each",
            )
