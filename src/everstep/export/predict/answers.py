"""Outputs of a model as rows of a file: of a classifier the class and its probability, of other models the numbers."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from everstep import storage
from everstep.errors import TrainingError, UsageError, problems_under
from everstep.run.record import Record

KINDS = ("classification", "regression")
_TELLING = ("accuracy", "auc", "precision", "recall", "f1")
_CLOSE = 1e-3


class Answers:
    """Turns outputs into columns; how is decided once, from what is known of the model and its first outputs.

    Args:
      kind: `classification`, `regression`, or None: inferred from the run's metrics, the last layer, and the first
        outputs.
      activation: The activation of the last layer, if that is known.
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
                raise UsageError(
                    f"output {name!r} has {list(values.shape[1:])} values per sample, which is no table row"
                )
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


Write = Callable[[Mapping[str, Any]], None]

_KEY = "--output"
_OUTPUTS = (".csv", ".parquet", ".pq")


def check_output(path: str) -> Path:
    """Returns where to write; checks it before anything is computed.

    Raises:
      UsageError: It is of no known kind, exists, or is in a folder that does not exist or cannot be written to.
    """
    place = Path(path)
    if place.suffix.lower() not in _OUTPUTS:
        raise UsageError("expected a name that ends with .csv or .parquet", key=_KEY, received=path)
    if place.is_dir():
        raise UsageError("is a directory", key=_KEY, received=path, remedy="name a file in it")
    if place.exists() or place.is_symlink():
        raise UsageError("exists already", key=_KEY, received=path, remedy="remove it, or name another file")
    if not place.parent.is_dir():
        raise UsageError("its folder does not exist", key=_KEY, received=path, remedy="create it first")
    try:
        storage.prepare_directory(place.parent)
    except UsageError as error:
        raise UsageError(problems_under(_KEY, error)) from error
    return place


@contextlib.contextmanager
def open_output(path: Path) -> Iterator[Write]:
    """Yields a function that appends rows; when the block fails, nothing is left of them.

    Raises:
      TrainingError: They cannot be written to disk.
    """
    with _on_disk(path), storage.atomic_path(path) as temporary, contextlib.ExitStack() as stack:
        writers: list[Any] = []

        def write(rows: Mapping[str, Any]) -> None:
            batch = pa.RecordBatch.from_pydict(dict(rows), schema=writers[0].schema if writers else None)
            if not writers:
                writers.append(stack.enter_context(_Writer(path.suffix.lower(), temporary, batch.schema)))
            writers[0].write(batch)

        yield write


@contextlib.contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of Arrow, too; reading has its own
        raise TrainingError(f"cannot be written: {error.strerror or error}", key=_KEY, received=str(path)) from error


class _Writer:
    """One of Arrow's writers, with the schema of the first rows."""

    def __init__(self, suffix: str, path: Path, schema: pa.Schema) -> None:
        self.schema = schema
        options = pacsv.WriteOptions(quoting_style="needed", quoting_header="none")
        self._inner = (
            pacsv.CSVWriter(path, schema, write_options=options) if suffix == ".csv" else pq.ParquetWriter(path, schema)
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows."""
        self._inner.write_batch(batch)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.close()
