"""A model's outputs as rows of a file: the class and its probability for a classifier, the numbers for other models."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everstep import storage
from everstep.errors import TrainingError, UsageError, problems_under
from everstep.run import Record

_CLASSIFIER_METRICS = ("accuracy", "auc", "precision", "recall", "f1")
_NEEDS_QUOTES = re.compile(r'[",\r\n]')
_TOLERANCE = 1e-3  # of the sum of probabilities


class OutputColumns:
    """Turns a model's outputs into columns of a table.

    The form of each output is decided once, with the first batch.

    Args:
      kind: `classification`, `regression`, or None to infer it from the run's metrics, the last layer, and the first
        outputs.
      activation: The activation of the last layer; empty if it is unknown.
      record: The run's record, if there is one.
      probabilities: Whether to add the probability of every class.

    The names of the classes are those of the record. An output with another number of classes has only their numbers.
    """

    def __init__(self, kind: str | None, activation: str, record: Record | None, probabilities: bool) -> None:
        self._kind, self._activation, self._every_class = kind, activation, probabilities
        metrics = (record or {}).get("metrics", {})
        names = [str(name).lower().split("/")[-1] for logs in metrics.values() for name in logs]
        self._has_classifier_metric = any(word in name for name in names for word in _CLASSIFIER_METRICS)
        self._classes = np.array((record or {}).get("classes") or [], object)
        self._forms: dict[str, str] = {}

    def columns(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the columns of one batch, by name.

        Raises:
          UsageError: An output has more than one axis beside the samples, which does not fit into a row.
        """
        found: dict[str, np.ndarray] = {}
        for name, values in outputs.items():
            prefix = f"{name}." if len(outputs) > 1 else ""
            values = values[:, None] if values.ndim == 1 else values
            if values.ndim != 2:
                raise UsageError(
                    f"output {name!r} has {list(values.shape[1:])} values per sample, which is no table row",
                    remedy="get it as an array with everstep.predict",
                )
            form = self._forms.setdefault(name, self._form(values))
            found |= {f"{prefix}{column}": array for column, array in self._rows(values, form).items()}
        return found

    def _form(self, values: np.ndarray) -> str:
        """Returns the form of an output: `values`, `probabilities`, `logits`; with one unit `sigmoid` or `logit`."""
        sums_to_one = False
        if values.dtype.kind == "f" and values.shape[1] > 1:
            distances = np.abs(values.astype(np.float64).sum(axis=1) - 1)
            sums_to_one = bool(np.all(values >= 0) and np.all(distances < _TOLERANCE))
        classifies = (
            self._kind == "classification" or self._has_classifier_metric or bool(self._activation) or sums_to_one
        )
        if values.dtype.kind in "SUO" or self._kind == "regression" or not classifies:
            return "values"
        if values.shape[1] == 1:
            bounded = self._activation == "sigmoid" or bool(np.all((values >= 0) & (values <= 1)))
            return "sigmoid" if bounded else "logit"
        return "probabilities" if sums_to_one or self._activation in ("softmax", "sigmoid") else "logits"

    def _rows(self, values: np.ndarray, form: str) -> dict[str, np.ndarray]:
        if form == "values":
            if values.shape[1] == 1:
                return {"prediction": values[:, 0]}
            return {f"prediction_{index}": values[:, index] for index in range(values.shape[1])}
        shares = _probabilities(values.astype(np.float64), form)
        best = np.argmax(shares, axis=1)
        count = shares.shape[1]
        is_named = len(self._classes) == len(set(self._classes)) == count
        rows = {"prediction": best.astype(np.int64)}
        rows |= {"label": self._classes[best]} if is_named else {}
        # Computed in float64, and as exact as the outputs: digits beyond theirs would be noise.
        shares = shares.astype(values.dtype if values.dtype in (np.float32, np.float64) else np.float32)
        rows |= {"probability": shares[np.arange(len(best)), best]}
        if self._every_class:
            names = self._classes if is_named else range(count)
            rows |= {f"probability_{name}": shares[:, index] for index, name in enumerate(names)}
        return rows


def _probabilities(values: np.ndarray, form: str) -> np.ndarray:
    """Returns the probability of every class."""
    if form in ("sigmoid", "logit"):
        second = values if form == "sigmoid" else 1.0 / (1.0 + np.exp(-values))
        return np.concatenate([1.0 - second, second], axis=1)
    if form == "logits":
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    return values


Write = Callable[[Mapping[str, Any]], None]

_KEY = "--output"


def check_output(path: str) -> Path:
    """Checks the file to write to, before anything is computed; returns its path.

    Raises:
      UsageError: Its kind is unknown, it exists, or its folder does not exist or cannot be written to.
    """
    place = Path(path)
    if place.suffix.lower() not in (".csv", ".parquet", ".pq"):
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
    """Yields a function that appends rows to a file; the schema is that of the first rows.

    The file appears when the block ends. If the block fails, nothing is left.

    Raises:
      TrainingError: The rows cannot be written to disk.
    """
    try:
        with storage.atomic_path(path) as temporary, contextlib.ExitStack() as stack:
            writer: Any = None
            schema: pa.Schema | None = None

            def write(rows: Mapping[str, Any]) -> None:
                nonlocal writer, schema
                batch = pa.RecordBatch.from_pydict(dict(rows), schema=schema)
                if writer is None:
                    schema = batch.schema
                    writer = stack.enter_context(_arrow_writer(path.suffix.lower(), temporary, schema))
                writer.write_batch(batch)

            yield write
    except OSError as error:  # Arrow raises them, too; the sources turn their own into UsageErrors
        raise TrainingError(f"cannot be written: {error.strerror or error}", key=_KEY, received=str(path)) from error


def _arrow_writer(suffix: str, path: Path, schema: pa.Schema) -> Any:
    return _CsvFile(path, schema) if suffix == ".csv" else pq.ParquetWriter(path, schema)


class _CsvFile:
    """A CSV file in which only what needs quotes has them: Arrow quotes every text, and all names or none.

    Args:
      path: The file.
      schema: The columns.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._names = path, schema.names

    def __enter__(self) -> "_CsvFile":
        self._file = open(self._path, "w", encoding="utf-8", newline="")
        self._file.write(",".join(map(_quoted, self._names)) + "\n")
        return self

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Appends rows."""
        columns = [map(_quoted, column.cast(pa.string()).fill_null("").to_pylist()) for column in batch.columns]
        self._file.writelines(",".join(row) + "\n" for row in zip(*columns, strict=True))

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _quoted(cell: str) -> str:
    """Returns a cell of a CSV file; in quotes only where it would be read as something else."""
    return '"' + cell.replace('"', '""') + '"' if _NEEDS_QUOTES.search(cell) else cell
