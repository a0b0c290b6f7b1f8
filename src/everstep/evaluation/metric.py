"""What is measured on each sample: a name, and a function of its label and its prediction."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from everstep.errors import UsageError

Better = Literal["higher", "lower"]

RESERVED = ("id", "label", "prediction", "confidence")
"""Columns of the table that are not the user's to name."""


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
    tensors of any backend; NaN means that the metric says nothing about this sample.

    Example:
      SampleMetric("margin", lambda y_true, y_pred: np.ptp(y_pred), description="first minus last", better="higher")

    Attributes:
      name: The column that the numbers go to.
      function: As given.
      vectorized: Whether the function takes a batch.
      description: One sentence for the reader of the page.
      better: "higher", "lower", or None where neither is; then high values count as the ones to look at.
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
            raise UsageError(f"a metric needs a name, a text that is not empty: received {name!r}")
        if name in RESERVED:
            raise UsageError(f"a metric cannot be named {name!r}, which is a column of its own: choose another name")
        if not callable(function):
            raise UsageError(f"metric {name!r} needs a function f(y_true, y_pred): received {function!r}")
        if better not in ("higher", "lower", None):
            raise UsageError(f"metric {name!r}: better is 'higher', 'lower' or None, received {better!r}")
        self.name = name
        self.function = function
        self.vectorized = bool(vectorized or getattr(function, "vectorized", False))
        self.description = str(description or "")
        self.better = better

    def get_func(self) -> Callable[[Any, Any], Any]:
        """Returns the metric as a function of one data point, without a batch axis."""
        return self._of_one_point if self.vectorized else self.function

    def renamed(self, name: str) -> "SampleMetric":
        """Returns the same metric under another name."""
        return SampleMetric(name, self.function, self.vectorized, self.description, self.better)

    def _of_one_point(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(np.asarray(y_true)[None], np.asarray(y_pred)[None])[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def sample_metrics(metrics: Mapping[str, Any] | Iterable[Any]) -> list[SampleMetric]:
    """Returns what to measure as a list, whichever way it was written down.

    Args:
      metrics: A dict from name to function (or metric), or a list of metrics: `SampleMetric`s, or objects with
        `name`, `description` and `get_func()`.

    Raises:
      UsageError: A name is empty or there twice, or something is not a metric.
    """
    found = _of_dict(metrics) if isinstance(metrics, Mapping) else [_of_object(m) for m in _listed(metrics)]
    names = [metric.name for metric in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"two metrics are named {twice[0]!r}: give each a name of its own")
    return found


def _of_dict(metrics: Mapping[str, Any]) -> list[SampleMetric]:
    return [m.renamed(name) if isinstance(m, SampleMetric) else _named(name, m) for name, m in metrics.items()]


def _named(name: str, value: Any) -> SampleMetric:
    if hasattr(value, "get_func"):
        return _of_object(value).renamed(name)
    return SampleMetric(name, value)


def _of_object(value: Any) -> SampleMetric:
    if isinstance(value, SampleMetric):
        return value
    if not (hasattr(value, "name") and hasattr(value, "get_func")):
        raise UsageError(
            f"{value!r} is not a metric: a list holds SampleMetrics or objects with name, description and "
            "get_func(); give functions as a dict from name to function"
        )
    return SampleMetric(
        value.name,
        value.get_func(),
        bool(getattr(value, "vectorized", False)),
        getattr(value, "description", ""),
        getattr(value, "better", None),
    )


def _listed(metrics: Any) -> list[Any]:
    if isinstance(metrics, str | bytes) or not isinstance(metrics, Iterable):
        raise UsageError(f"metrics are a dict from name to function, or a list of metrics: received {metrics!r}")
    return list(metrics)
