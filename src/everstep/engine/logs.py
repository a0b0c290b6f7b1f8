"""What steps return, checked before the first one and brought to the host after them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everstep.errors import UsageError, nearest
from everstep.task.task import Task
from everstep.types import Logs


def floats(logs: Mapping[str, Any]) -> Logs:
    """Returns host numbers; a metric with several results gives `name/0`, `name/1`, …, a table of them `name/0/0`"""
    flat: Logs = {}
    for name, value in logs.items():
        array = np.asarray(value, dtype=np.float64)
        for index in np.ndindex(array.shape):
            flat["/".join([name, *map(str, index)])] = float(array[index])
    return flat


def whole(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `floats` took apart in one piece again, as Keras hands it to callbacks: arrays under their names."""
    parts: dict[str, dict[tuple[int, ...], float]] = {}
    for name, value in logs.items():
        match = _PART.fullmatch(name)
        base, index = (match[1], tuple(map(int, match[2][1:].split("/")))) if match else (name, ())
        parts.setdefault(base, {})[index] = value
    return {name: found[()] if () in found else _array(found) for name, found in parts.items()}


_PART = re.compile(r"(.+?)((?:/\d+)+)")


def _array(parts: Mapping[tuple[int, ...], float]) -> np.ndarray:
    array = np.zeros(np.max(list(parts), axis=0) + 1, "float32")
    for index, value in parts.items():
        array[index] = value
    return array


def checked_logs(logs: Any, task: Task, step: str) -> dict[str, Any]:
    """Returns what a step returned as a flat dict: `{m.name: m.result() for m in model.metrics}` has a dict inside.

    Raises:
      UsageError: It is something else.
    """
    if logs is not None and not isinstance(logs, Mapping):
        raise UsageError(
            f"{type(task).__name__}.{step} returned {type(logs).__name__}, not a dict: return {{self.loss: loss}}"
        )
    flat: dict[str, Any] = {}
    for name, value in (logs or {}).items():
        flat |= checked_logs(value, task, step) if isinstance(value, Mapping) else {name: value}
    return flat


def train_logs(shapes: Mapping[str, tuple], task: Task) -> dict[str, tuple]:
    """Returns what a train step returns, by name and shape.

    Raises:
      UsageError: The loss is not among them, or one is no scalar. A model's own step may return what it likes.
    """
    if task.window("train") == "last":
        return dict(shapes)
    if task.loss not in shapes:
        raise UsageError(
            f"{type(task).__name__}.train_step returned no {task.loss!r} (it returned {sorted(shapes) or 'nothing'}): "
            "return {self.loss: loss}"
        )
    wrong = {name: shape for name, shape in shapes.items() if shape != ()}
    if wrong:
        raise UsageError(
            f"{type(task).__name__}.train_step returned {', '.join(f'{n!r} of shape {s}' for n, s in wrong.items())}: "
            "return scalars, for example keras.ops.mean(value)"
        )
    return dict(shapes)


def validation_logs(shapes: Mapping[str, tuple], task: Task) -> dict[str, tuple]:
    """Returns what of a validation step is logged: the numbers; of a model's own step, which logs results, all."""
    every = task.window("validation") == "last"
    return {name: shape for name, shape in shapes.items() if every or shape == ()}


def watched_log(names: Sequence[str], task: Task) -> str:
    """Returns the name of what must stay finite in training: the loss; where there is none, what the task says.

    Raises:
      UsageError: The task names something that its steps do not return.
    """
    named = task.watch or (task.loss if task.loss in names else next(iter(names), ""))
    if task.watch and names and task.watch not in names:
        raise UsageError(
            f"watch: received {task.watch!r}, which train_step does not return; {nearest(task.watch, names)}"
        )
    return named


def refuse_duplicates(names: Sequence[str]) -> None:
    """Refuses a task whose metrics and steps use a name twice.

    Raises:
      UsageError: There is such a name.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two metrics or step scalars are named {', '.join(map(repr, twice))}: give them other names")
