"""Metrics of single samples: a name, and a function of a label and a prediction.

`scores` is the only place that calls users' functions. It checks every number, and its errors name the metric, the
sample and the failing line.
"""

import functools
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everstep.data import host_array
from everstep.errors import UsageError
from everstep.evaluation import arrays

Better = Literal["higher", "lower"]

RESERVED = ("id", "label", "prediction", "confidence")
"""Columns of the table whose names users cannot choose."""


def vectorized(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declares that a metric function takes a whole batch and returns one number per sample.

    Example:
      @vectorized
      def largest_error(y_true, y_pred):
          return np.abs(y_true - y_pred).max(axis=1)
    """

    @functools.wraps(function)
    def over_a_batch(y_true: Any, y_pred: Any) -> Any:
        return function(y_true, y_pred)

    over_a_batch.vectorized = True  # type: ignore[attr-defined]
    return over_a_batch


class SampleMetric:
    """A number for each sample: how good, or how bad, the prediction for it is.

    A function is called for one data point, `f(y_true, y_pred)`, with arrays that have no batch axis. One that
    is vectorised is called once per batch and returns as many numbers as there are samples. Either may return
    tensors of any backend; NaN means that the metric has no value for this sample.

    Example:
      SampleMetric("margin", lambda y_true, y_pred: np.ptp(y_pred), description="first minus last", better="higher")

    Attributes:
      name: The name of the metric's column.
      function: The function of labels and predictions.
      vectorized: Whether the function takes a batch.
      description: One sentence for the readers of a report.
      better: "higher", "lower", or None if neither is; then high values count as the worst.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Any, Any], Any],
        vectorized: bool = False,
        description: str = "",
        better: Better | None = None,
    ):
        if not isinstance(name, str) or not name.strip():
            raise UsageError("the name of a metric must be a non-empty text", key="name", received=name)
        if name in RESERVED:
            raise UsageError("is a reserved column", key="name", received=name, remedy="choose another name")
        if not callable(function):
            raise UsageError("needs a function f(y_true, y_pred)", key=f"metrics.{name}", received=function)
        if better not in ("higher", "lower", None):
            raise UsageError("must be 'higher', 'lower' or None", key=f"metrics.{name}.better", received=better)
        self.name = name
        self.function = function
        self.vectorized = bool(vectorized or getattr(function, "vectorized", False))
        self.description = str(description or "")
        self.better = better

    def get_func(self) -> Callable[[Any, Any], Any]:
        """Returns the metric as a function of one data point, without a batch axis."""
        return self.__call_for_one_sample if self.vectorized else self.function

    def renamed(self, name: str) -> "SampleMetric":
        """Returns the same metric under another name."""
        return SampleMetric(name, self.function, self.vectorized, self.description, self.better)

    def __call_for_one_sample(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(np.asarray(y_true)[None], np.asarray(y_pred)[None])[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def sample_metrics(metrics: Mapping[str, Any] | Iterable[Any]) -> list[SampleMetric]:
    """Returns the metrics as a list of `SampleMetric`.

    Args:
      metrics: A dict from name to function (or metric), or a list of metrics: `SampleMetric`s, or objects with
        `name`, `description` and `get_func()`.

    Raises:
      UsageError: A name is empty or used twice, or something is not a metric.
    """
    if isinstance(metrics, Mapping):
        found = [_named(name, metric) for name, metric in metrics.items()]
    elif isinstance(metrics, str | bytes) or not isinstance(metrics, Iterable):
        raise UsageError("expected a dict from name to function, or a list of metrics", key="metrics", received=metrics)
    else:
        found = [_from_object(metric) for metric in metrics]
    names = [metric.name for metric in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "two metrics have this name", key="metrics", received=twice[0], remedy="give each a name of its own"
        )
    return found


def _named(name: str, value: Any) -> SampleMetric:
    if hasattr(value, "get_func"):
        return _from_object(value).renamed(name)
    return SampleMetric(name, value)


def _from_object(value: Any) -> SampleMetric:
    if isinstance(value, SampleMetric):
        return value
    if not (hasattr(value, "name") and hasattr(value, "get_func")):
        raise UsageError(
            "a list has SampleMetrics, or objects with name, description and get_func()",
            key="metrics",
            received=value,
            remedy="pass functions as a dict from name to function",
        )
    return SampleMetric(
        value.name,
        value.get_func(),
        bool(getattr(value, "vectorized", False)),
        getattr(value, "description", ""),
        getattr(value, "better", None),
    )


def scores(metric: SampleMetric, ids: Sequence[str], y_true: Any, y_pred: Any) -> np.ndarray:
    """Returns the metric's number for each sample, as float64.

    Raises:
      UsageError: The function fails, or does not return one number per sample; the error names metric and sample.
    """
    if metric.vectorized:
        return _batch_scores(metric, ids, y_true, y_pred)
    found = np.empty(len(ids))
    for i, name in enumerate(ids):
        try:
            value = metric.function(arrays.at(y_true, i), arrays.at(y_pred, i))
        except Exception as error:
            raise _failed(metric, f"sample {name!r}", error) from error
        found[i] = _checked_number(metric, name, value)
    return found


def _checked_number(metric: SampleMetric, name: str, value: Any) -> float:
    """Returns the function's result as a float; common types are handled first, for speed."""
    number: float | None
    if isinstance(value, float | int | np.floating):
        number = float(value)
    else:
        array = _numeric(value)
        number = None if array is None or array.size != 1 else float(array.reshape(())[()])
    if number is None or math.isinf(number):
        raise UsageError(
            f"returned {_shown(value)} for sample {name!r}",
            key=f"metrics.{metric.name}",
            remedy="return one number, finite or NaN",
        )
    return number


def _batch_scores(metric: SampleMetric, ids: Sequence[str], y_true: Any, y_pred: Any) -> np.ndarray:
    try:
        value = metric.function(y_true, y_pred)
    except Exception as error:
        raise _failed(metric, f"the batch from sample {ids[0]!r} to {ids[-1]!r}", error) from error
    array = _numeric(value)
    if array is None or array.size != len(ids) or array.shape[:1] != (len(ids),):
        raise UsageError(
            f"returned {_shown(value)} for the {len(ids)} samples from {ids[0]!r} to {ids[-1]!r}",
            key=f"metrics.{metric.name}",
            remedy="return one number per sample from a vectorised function",
        )
    values = array.reshape(-1).astype(np.float64)
    for first in np.flatnonzero(np.isinf(values))[:1].tolist():
        _checked_number(metric, ids[first], float(values[first]))  # raises
    return values


def _numeric(value: Any) -> np.ndarray | None:
    """Returns an array of real numbers; None for texts, None, complex numbers and ragged lists."""
    try:
        array = host_array(value)
        return None if array.dtype.kind in "OSUcmM" else array.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _failed(metric: SampleMetric, where: str, error: Exception) -> UsageError:
    if isinstance(error, AttributeError) and error.name == "numpy":
        return UsageError(
            f"calls .numpy() on {type(error.obj).__name__}, which has none{_line(error)}, on {where}",
            key=f"metrics.{metric.name}",
            remedy="return the value itself, which is converted on every backend",
        )
    kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
    text = str(error).strip().partition("\n")[0]
    return UsageError(f"failed on {where}: {kind}{text}{_line(error)}", key=f"metrics.{metric.name}")


def _line(error: Exception) -> str:
    """Returns the failing line of the user's function, instead of one deep inside a library."""
    own = Path(__file__).parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if own not in Path(f.filename).parents]
    return "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in frames[:1])


def _shown(value: Any) -> str:
    text = " ".join(f"{value!r:.60}".split())
    shape = np.shape(value) if hasattr(value, "shape") else ()
    return f"{text} ({type(value).__name__}{f' of shape {tuple(shape)}' if shape else ''})"
