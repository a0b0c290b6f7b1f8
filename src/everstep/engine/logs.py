"""The logs that steps return: checked when a step is traced, and converted to numbers on the host."""

import logging
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import keras
import numpy as np

from everstep.data import nest
from everstep.errors import UsageError, kind_of, nearest
from everstep.task import Task, as_scalar
from everstep.types import Logs

logger = logging.getLogger(__name__)


class HostArray(np.ndarray):
    """A NumPy array that also has `numpy()`, so that code written for TensorFlow's tensors works with it."""

    def numpy(self) -> np.ndarray:
        """Returns a plain array."""
        return np.asarray(self)


class GlobalStep(int):
    """A number of steps that also has `numpy()`, as the variable has which TensorFlow programs pass."""

    def numpy(self) -> np.int64:
        """Returns the number as NumPy's, the type of the variable."""
        return np.int64(self)


def host_outputs(structure: Any, leaves: Iterable[Sequence[np.ndarray]]) -> dict[str, Any]:
    """Returns the outputs of one step as `aggregate_logs` receives them.

    Args:
      structure: The nesting of what the step has returned.
      leaves: For each leaf, from left to right, one array per replica.
    """
    left = iter(leaves)
    outputs: dict[str, Any] = nest.map_leaves(
        lambda _: tuple(np.asarray(part).view(HostArray) for part in next(left)), structure
    )
    return outputs


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
    logs: dict[str, Any] = {}
    for name, value in (results or {}).items():
        if isinstance(value, Mapping):
            logs[name] = reduced_logs(value, skipped, f"{above}{name}|")
        elif (number := _number(value)) is not None:
            logs[name] = number
        elif f"{above}{name}" not in skipped:
            skipped.add(f"{above}{name}")
            shape = getattr(value, "shape", None)
            logger.warning(
                "reduce_aggregated_logs returned a %s for %r, which is not a single number and is not logged",
                type(value).__name__ if shape is None else f"{type(value).__name__} of shape {tuple(shape)}",
                f"{above}{name}",
            )
    return logs


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


def checked_logs(returned: Any, task: Task) -> dict[str, Any]:
    """Returns the logs of a train step as a flat dict, with a loss of shape `[1]` as a scalar.

    Logs may be nested: `{m.name: m.result() for m in model.metrics}` has a dict inside.

    Raises:
      UsageError: The step returned something else.
    """
    logs = _flat(_as_dict(returned, task, "train_step"))
    for name, value in logs.items():
        if isinstance(value, list | tuple):
            raise UsageError(
                f"returned {name!r} as {kind_of(value)}",
                key=f"{type(task).__name__}.train_step",
                remedy="return scalars, for example keras.ops.mean(value)",
            )
    return _with_scalar_loss(logs, task)


def checked_outputs(returned: Any, task: Task) -> dict[str, Any]:
    """Returns the outputs of a validation step: any nesting of dicts, lists and tuples, with tensors as leaves.

    Raises:
      UsageError: The step returned something else.
    """
    outputs = _as_dict(returned, task, "validation_step")
    for path, leaf in nest.walk(outputs):
        if not (keras.ops.is_tensor(leaf) or isinstance(leaf, _CONVERTIBLE)):
            raise UsageError(
                f"returned {kind_of(leaf)} as {path}",
                key=f"{type(task).__name__}.validation_step",
                remedy="return tensors and numbers, in dicts, lists and tuples",
            )
    return _with_scalar_loss(nest.map_leaves(_as_tensor, outputs), task)


_CONVERTIBLE = (numbers.Number, np.ndarray, np.generic, keras.Variable)


def _as_tensor(leaf: Any) -> Any:
    return leaf if keras.ops.is_tensor(leaf) else keras.ops.convert_to_tensor(leaf)


def logs_in(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the outputs of a validation step that have names: those in dicts, not those in lists or tuples."""
    return {name: value for name, value in _flat(outputs).items() if not isinstance(value, list | tuple | NoneType)}


def _as_dict(returned: Any, task: Task, step: str) -> dict[str, Any]:
    if returned is not None and not isinstance(returned, Mapping):
        raise UsageError(
            f"returned {kind_of(returned)}, must return a dict",
            key=f"{type(task).__name__}.{step}",
            remedy="return {self.loss: loss}",
        )
    return dict(returned or {})


def _flat(logs: Mapping[Any, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {str(name): value}
    return flat


def _with_scalar_loss(logs: dict[str, Any], task: Task) -> dict[str, Any]:
    return {**logs, task.loss: as_scalar(logs[task.loss])} if task.loss in logs else logs


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
