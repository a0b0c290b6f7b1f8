"""The logs that steps return: checked when a step is traced, and converted to numbers on the host."""

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
    """A NumPy array that also has `numpy()`, so that code written for TensorFlow's tensors works with it."""

    def numpy(self) -> np.ndarray:
        """Returns a plain array."""
        return np.asarray(self)


def host_outputs(outputs: Mapping[str, Any]) -> dict[str, tuple[HostArray, ...]]:
    """Returns the outputs of one step as `aggregate_logs` receives them: for each name, one array per replica."""
    return {name: tuple(np.asarray(part).view(HostArray) for part in parts) for name, parts in outputs.items()}


def reduced_logs(results: Any, skipped: set[str], above: str = "") -> dict[str, Any]:
    """Returns the result of `reduce_aggregated_logs` as numbers, with its nesting.

    Args:
      results: The result; None is an empty one.
      skipped: Names of values that are not numbers; new ones are added, with a warning.
      above: The names of the dicts around `results`, joined by `|`.

    Raises:
      UsageError: The result is not a dict.
    """
    if results is not None and not isinstance(results, Mapping):
        raise UsageError(
            f"returned {kind_of(results)}, must return a dict of names and numbers", key="reduce_aggregated_logs"
        )
    numbers: dict[str, Any] = {}
    for name, value in (results or {}).items():
        if isinstance(value, Mapping):
            numbers[name] = reduced_logs(value, skipped, f"{above}{name}|")
        elif (number := _number(value)) is not None:
            numbers[name] = number
        elif f"{above}{name}" not in skipped:
            skipped.add(f"{above}{name}")
            shape = getattr(value, "shape", None)
            logger.warning(
                "reduce_aggregated_logs returned a %s for %r, which is not a single number and is not logged",
                type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}",
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


def floats(logs: Mapping[str, Any]) -> Logs:
    """Returns logs as plain numbers; a vector becomes `name/0`, `name/1`, …, a matrix `name/0/0`, …"""
    flat: Logs = {}
    for name, value in logs.items():
        array = np.asarray(value, dtype=np.float64)
        for index in np.ndindex(array.shape):
            flat["/".join([name, *map(str, index)])] = float(array[index])
    return flat


def with_arrays(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs with the arrays that `floats` has split, as Keras passes them to callbacks."""
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
    """Returns the logs of a step as a flat dict, with a loss of shape `[1]` as a scalar.

    Logs may be nested: `{m.name: m.result() for m in model.metrics}` has a dict inside.

    Raises:
      UsageError: The step returned something else.
    """
    if logs is not None and not isinstance(logs, Mapping):
        raise UsageError(
            f"returned {kind_of(logs)}, must return a dict",
            key=f"{type(task).__name__}.{step}",
            remedy="return {self.loss: loss}",
        )
    flat: dict[str, Any] = {}
    for name, value in (logs or {}).items():
        flat |= checked_logs(value, task, step) if isinstance(value, Mapping) else {name: value}
    return {**flat, task.loss: as_scalar(flat[task.loss])} if task.loss in flat else flat


def train_logs(shapes: Mapping[str, tuple], task: Task) -> dict[str, tuple]:
    """Returns the shapes of the logs of a train step, checked; a model's own step may return any logs.

    Raises:
      UsageError: The loss is missing, or a value is not a scalar.
    """
    if task.log_reduction("train") == "last":
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
    """Returns the shapes of the validation outputs that are logged: the scalars; all for a model's own step."""
    every = task.log_reduction("validation") == "last"
    return {name: shape for name, shape in shapes.items() if every or shape == ()}


def watched_log(names: Sequence[str], task: Task) -> str:
    """Returns the name of the log that must stay finite in training: `task.watch`, else the loss, else the first one.

    Raises:
      UsageError: `task.watch` is not among the logs.
    """
    named = task.watch or (task.loss if task.loss in names else next(iter(names), ""))
    if task.watch and names and task.watch not in names:
        raise UsageError(
            "train_step does not return it", key="watch", received=task.watch, remedy=nearest(task.watch, names)
        )
    return named


def check_unique(names: Sequence[str]) -> None:
    """Checks that no two metrics of a task have the same name.

    Raises:
      UsageError: Two metrics have the same name.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"two metrics are named {', '.join(map(repr, twice))}", key="build_metrics", remedy="give them other names"
        )
