"""What each task sees of the shared model."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from everstep.errors import UsageError


def task_models(model: keras.Model, names: Sequence[str]) -> dict[str, keras.Model]:
    """Returns the model of each task; all share the layers of one.

    A model with an attribute `sub_tasks`, a dict of models, says it itself. Of a functional model with one output per
    task, in a dict by their names, each task gets the part that leads to its output. Any other model is the model of
    every task.

    Raises:
      UsageError: Some of the tasks have an output, or a model in `sub_tasks`, and some have none.
    """
    given = getattr(model, "sub_tasks", None)
    if isinstance(given, Mapping):
        _require_all(given, names, "sub_tasks")
        return {name: given[name] for name in names}
    outputs = _outputs(model)
    if not isinstance(outputs, Mapping) or not set(outputs) & set(names):
        return dict.fromkeys(names, model)
    _require_all(outputs, names, "outputs")
    return {name: keras.Model(model.input, outputs[name], name=f"{model.name}_{name}") for name in names}


def _outputs(model: keras.Model) -> Any:
    """Returns a functional model's symbolic outputs; None where only a call would tell."""
    try:
        return model.output
    except (AttributeError, ValueError):
        return None


def _require_all(held: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    missing = [name for name in names if name not in held]
    if missing:
        raise UsageError(
            f"the model's {what} are {', '.join(map(repr, held))}, and none of them is for the tasks "
            f"{', '.join(map(repr, missing))}: name the {what} as the tasks are named (task_routines[…].task_name)"
        )
