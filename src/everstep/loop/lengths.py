"""How long a run trains, in steps: epochs are converted by the length of the data."""

from collections.abc import Callable
from typing import Any

from everstep.config import dialect, find_key
from everstep.data import Stream, make_stream
from everstep.errors import UsageError
from everstep.loop.config import TrainerConfig, in_steps
from everstep.loop.trainer import Trainer
from everstep.task import Task


def with_learning_rate_length(params: Any, task: Task, used: str, say: Callable[[str], None]) -> Any:
    """Returns an experiment's configuration with a learning-rate schedule as long as training, and steps of its warmup.

    A resumed run keeps the lengths that it began with, however long it is trained now.

    Args:
      params: The experiment's configuration.
      task: The task, which has the data.
      used: The text of the configuration that the newest checkpoint was trained with; empty if there is none.
      say: Called with a line for each length that is kept.
    """
    config = params.trainer
    if not config.optimizer_config.unset_lengths:
        return params
    new = config.with_learning_rate_length(_train_steps(params, task))
    used_tree = dialect.load(used) if used else {}
    for length in config.optimizer_config.unset_lengths:
        key = f"trainer.optimizer_config.{length}"
        kept = find_key(used_tree, key)
        if isinstance(kept, int) and kept != find_key(new.optimizer_config, length):
            section, kind, field = length.split(".")
            new = new.replace(optimizer_config={section: {kind: {field: kept}}})
            what = "warmup" if section == "warmup" else "learning rate"
            say(f"the {what} keeps its length of {kept} steps, with which the run began; {key} changes it")
    return params.replace(trainer=new)


def _train_steps(params: Any, task: Task) -> int | None:
    """Returns the number of training steps; epochs are converted by the length of the data."""
    config = params.trainer
    if config.train_steps is not None:
        return config.train_steps
    batches = config.overfit_batches or _training_data(params, task).batches_per_epoch
    return in_steps(config, batches).train_steps


def trainer_in_steps(params: Any, task: Task, trainer: Trainer) -> TrainerConfig:
    """Returns the trainer's section of an experiment with all intervals in steps."""
    config: TrainerConfig = params.trainer
    if config.overfit_batches is not None:
        return in_steps(config, config.overfit_batches)
    stream = _training_data(params, task) if trainer.train_stream is None else trainer.train_stream
    return in_steps(config, stream.batches_per_epoch, stream.is_counting_first_epoch)


def _training_data(params: Any, task: Task) -> Stream:
    """Returns the training data, to count its batches: continuous_eval needs to know when the trainer is done."""
    data = params.task.train_data.replace(is_training=True)
    data = data if data.seed is not None else data.replace(seed=params.runtime.seed)
    try:
        return make_stream(task.inputs_for(data), data, training=True, seed=params.runtime.seed)
    except UsageError as error:
        reason = f"needs the length of {{data}}: {error}"
        raise UsageError(reason, key="trainer.epochs", mentions={"data": "task.train_data"}) from error
