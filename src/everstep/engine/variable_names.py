"""What variables are called where they are chosen by name: as in the state, so that every process agrees."""

from typing import Any

import keras

from everstep.engine import state as states
from everstep.optim import variable_names
from everstep.optim.held import held_optimizers
from everstep.task.task import Task


def name_variables(task: Task, model: keras.Model, optimizer: Any) -> None:
    """Tells the optimizer, and those that the task and the model keep, what the variables are called.

    Those of the model have their keys in a checkpoint without `model/`, such as `encoder/layer_norm/bias`; those that
    the task keeps in an attribute have them as they are: `task.critic/dense/kernel`.
    """

    def names() -> dict[int, str]:
        keyed = states.collect({"model": model, **states.task_owners(task)})
        return {id(variable): key.removeprefix("model/") for key, variable in keyed.items()}

    for holder in held_optimizers(optimizer, task, model):
        variable_names.name_variables(holder, names)
