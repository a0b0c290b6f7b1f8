"""What steps return, checked before the first one and brought to the host after them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from everstep.errors import UsageError, kind_of
from everstep.grad import as_scalar
from everstep.task.task import Task
from everstep.types import Logs


def floats(logs: Mapping[str, Any]) -> Logs:
    """Returns host numbers; a metric with several results gives `name/0`, `name/1`, …"""
    flat: Logs = {}
    for name, value in logs.items():
        array = np.asarray(value, dtype=np.float64)
        flat |= {name: float(array)} if array.ndim == 0 else {f"{name}/{i}": float(v) for i, v in enumerate(array.flat)}
    return flat


def checked_logs(logs: Any, task: Task, step: str) -> dict[str, Any]:
    """Returns what a step returned as a dict, a loss of shape `[1]` as a scalar.

    Raises:
      UsageError: It is something else.
    """
    if logs is not None and not isinstance(logs, Mapping):
        raise UsageError(
            f"{type(task).__name__}.{step} returned {kind_of(logs)}, not a dict: return {{self.loss: loss}}"
        )
    checked = dict(logs or {})
    return {**checked, task.loss: as_scalar(checked[task.loss])} if task.loss in checked else checked


def scalar_names(shapes: Mapping[str, tuple], task: Task) -> list[str]:
    """Returns the names of what a train step returns, by the shapes of it.

    Raises:
      UsageError: The loss is not among them, or one is no scalar.
    """
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
    return list(shapes)
