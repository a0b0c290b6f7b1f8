"""What a model says, as rows: of a classifier the class and its probability, of all else the numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everstep.errors import UsageError
from everstep.run.record import Record

KINDS = ("classification", "regression")
_TELLING = ("accuracy", "auc", "precision", "recall", "f1")
_CLOSE = 1e-3


class Answers:
    """Makes columns of outputs; how is decided once, by what is known of the model and by its first answers.

    Args:
      kind: `classification`, `regression`, or None: as the run's metrics, the last layer, or the first answers tell.
      activation: What the last layer applies, if that is known.
      record: The run's record, if there is one.
      probabilities: Whether to give the probability of every class.
    """

    def __init__(self, kind: str | None, activation: str, record: Record | None, probabilities: bool) -> None:
        self._kind, self._activation, self._every = kind, activation, probabilities
        self._measured = _is_measured_as_classifier(record)
        self._forms: dict[str, str] = {}

    def columns(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns a batch's columns, by name.

        Raises:
          UsageError: An output has more than one axis beside the samples, which no row can hold.
        """
        found: dict[str, np.ndarray] = {}
        for name, values in outputs.items():
            prefix = f"{name}." if len(outputs) > 1 else ""
            values = values[:, None] if values.ndim == 1 else values
            if values.ndim != 2:
                raise UsageError(f"the model's output {name!r} has {list(values.shape[1:])} values a sample: no table")
            form = self._forms.setdefault(name, self._form(values))
            found |= {f"{prefix}{column}": array for column, array in self._rows(values, form).items()}
        return found

    def _form(self, values: np.ndarray) -> str:
        """Returns what numbers are: `values`, `probabilities`, `logits` or, of one unit, `sigmoid` or `logit`."""
        shares = _are_probabilities(values)
        if values.dtype.kind in "SUO" or self._kind == KINDS[1] or not self._classifies(shares):
            return "values"
        if values.shape[1] == 1:
            bounded = self._activation == "sigmoid" or bool(np.all((values >= 0) & (values <= 1)))
            return "sigmoid" if bounded else "logit"
        return "probabilities" if shares or self._activation in ("softmax", "sigmoid") else "logits"

    def _classifies(self, shares: bool) -> bool:
        return self._kind == KINDS[0] or self._measured or bool(self._activation) or shares

    def _rows(self, values: np.ndarray, form: str) -> dict[str, np.ndarray]:
        if form == "values":
            if values.shape[1] == 1:
                return {"prediction": values[:, 0]}
            return {f"prediction_{index}": values[:, index] for index in range(values.shape[1])}
        shares = _shares(values.astype(np.float64), form)
        best = np.argmax(shares, axis=1)
        rows = {"prediction": best.astype(np.int64), "probability": shares[np.arange(len(best)), best]}
        every = {f"probability_{index}": shares[:, index] for index in range(shares.shape[1])} if self._every else {}
        return rows | every


def table(ids: Sequence[Any], columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns a batch's rows, its ids first."""
    return {"id": list(ids), **columns}


def _shares(values: np.ndarray, form: str) -> np.ndarray:
    """Returns the probability of every class."""
    if form in ("sigmoid", "logit"):
        one = values if form == "sigmoid" else 1.0 / (1.0 + np.exp(-values))
        return np.concatenate([1.0 - one, one], axis=1)
    if form == "logits":
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    return values


def _are_probabilities(values: np.ndarray) -> bool:
    if values.dtype.kind != "f" or values.shape[1] < 2:
        return False
    return bool(np.all(values >= 0) and np.all(np.abs(values.astype(np.float64).sum(axis=1) - 1) < _CLOSE))


def _is_measured_as_classifier(record: Record | None) -> bool:
    metrics = (record or {}).get("metrics", {})
    names = [str(name).lower() for logs in metrics.values() for name in logs]
    return any(word in name.split("/")[-1] for name in names for word in _TELLING)
