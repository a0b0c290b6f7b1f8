"""What steps return, checked before the first one and brought to the host after them."""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.errors import UsageError, kind_of, nearest
from everstep.task.grad import as_scalar
from everstep.task.task import Task
from everstep.types import Logs

logger = logging.getLogger(__name__)


class HostArray(np.ndarray):
    """A NumPy array that also answers `numpy()`, as TensorFlow's tensors do: code written for those works with it."""

    def numpy(self) -> np.ndarray:
        """Returns it as a plain array."""
        return np.asarray(self)


def host_outputs(outputs: Mapping[str, Any]) -> dict[str, tuple[HostArray, ...]]:
    """Returns the outputs of one step as `aggregate_logs` gets them: of each, a tuple with one array per replica."""
    return {name: tuple(np.asarray(part).view(HostArray) for part in parts) for name, parts in outputs.items()}


def reduced_logs(results: Any, skipped: set[str], above: str = "") -> dict[str, Any]:
    """Returns what `reduce_aggregated_logs` returned, as numbers, nested as they are; None is nothing.

    Args:
      results: What it returned.
      skipped: Names of what is not a number: each is skipped, with a warning the first time.
      above: The names that `results` is inside of.

    Raises:
      UsageError: It returned no dict.
    """
    if results is not None and not isinstance(results, Mapping):
        raise UsageError(f"returned {kind_of(results)}, not a dict of names and numbers", key="reduce_aggregated_logs")
    numbers: dict[str, Any] = {}
    for name, value in (results or {}).items():
        if isinstance(value, Mapping):
            numbers[name] = reduced_logs(value, skipped, f"{above}{name}|")
        elif (number := _number(value)) is not None:
            numbers[name] = number
        elif f"{above}{name}" not in skipped:
            skipped.add(f"{above}{name}")
            logger.warning(
                "reduce_aggregated_logs returned a %s under %r, which is not one number: it is not logged",
                _brief(value),
                f"{above}{name}",
            )
    return numbers


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes):
        return None
    try:
        array = keras.ops.convert_to_numpy(value)
        return float(array.reshape(())) if array.size == 1 else None
    except (TypeError, ValueError):
        return None


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}"


def floats(logs: Mapping[str, Any]) -> Logs:
    """Returns host numbers; a metric with several results gives `name/0`, `name/1`, …; a table `name/0/0`, …"""
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
    """Returns what a step returned as a flat dict, a loss of shape `[1]` as a scalar.

    It may be nested: `{m.name: m.result() for m in model.metrics}` has a dict inside.

    Raises:
      UsageError: It is something else.
    """
    if logs is not None and not isinstance(logs, Mapping):
        raise UsageError(
            f"returned {kind_of(logs)}, not a dict",
            key=f"{type(task).__name__}.{step}",
            remedy="return {self.loss: loss}",
        )
    flat: dict[str, Any] = {}
    for name, value in (logs or {}).items():
        flat |= checked_logs(value, task, step) if isinstance(value, Mapping) else {name: value}
    return {**flat, task.loss: as_scalar(flat[task.loss])} if task.loss in flat else flat


def train_logs(shapes: Mapping[str, tuple], task: Task) -> dict[str, tuple]:
    """Returns what a train step returns, by name and shape.

    Raises:
      UsageError: The loss is not among them, or one is no scalar. A model's own step may return what it likes.
    """
    if task.window("train") == "last":
        return dict(shapes)
    if task.loss not in shapes:
        raise UsageError(
            f"returned no {task.loss!r} (it returned {sorted(shapes) or 'nothing'})",
            key=f"{type(task).__name__}.train_step",
            remedy="return {self.loss: loss}",
        )
    wrong = {name: shape for name, shape in shapes.items() if shape != ()}
    if wrong:
        raise UsageError(
            f"returned {', '.join(f'{n!r} of shape {s}' for n, s in wrong.items())}",
            key=f"{type(task).__name__}.train_step",
            remedy="return scalars, for example keras.ops.mean(value)",
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
            "train_step does not return it", key="watch", received=task.watch, remedy=nearest(task.watch, names)
        )
    return named


def refuse_duplicates(names: Sequence[str]) -> None:
    """Refuses a task whose metrics use a name twice.

    Raises:
      UsageError: There is such a name.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two metrics are named {', '.join(map(repr, twice))}", remedy="give them other names")
