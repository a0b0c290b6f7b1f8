"""The evaluation of a run on one set of data: the JSON that was made for the page, and the rows beside it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everstep import storage
from everstep.errors import UsageError
from everstep.report import classes, residuals, rows, slices

FORMAT = 1
_FIRST = ("test", "validation")


@dataclasses.dataclass
class Split:
    """What was found on one set of data.

    Attributes:
      page: The content of `<split>.json`.
      table: A row per sample, in the order of the data; None where the file is gone.
      changes: Further columns, from a comparison: a number for each row, by name.
    """

    page: Mapping[str, Any]
    table: pa.Table | None
    changes: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Which data it is."""
        return str(self.page["split"])

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, in order."""
        return [metric["name"] for metric in self.page["metrics"]]

    def as_data(self) -> dict[str, Any]:
        """Returns the split as the page reads it."""
        same = ("split", "kind", "rows", "classes", "metrics", "samples")
        return {name: self.page[name] for name in same} | {
            "confusion": classes.sparse(self.page["confusion"]),
            **self._over_all_rows(),
        }

    def _over_all_rows(self) -> dict[str, Any]:
        if self.table is None:
            return {"table": None, "slices": [], "by_class": [], "residuals": None}
        metrics = {name: rows.floats(self.table[name]) for name in self.metrics}
        return {
            "table": rows.table_data(self.table, self.page, metrics, self.changes),
            "slices": slices.slices(self.table, metrics, self._class_count()),
            "by_class": classes.by_class(self.table, metrics, self._classes()) if self._is("classification") else [],
            "residuals": residuals.residuals(self.table) if self._is("regression") else None,
        }

    def _is(self, kind: str) -> bool:
        has_outcome = self.table is not None and {"label", "prediction"} <= set(self.table.column_names)
        return self.page["kind"] == kind and has_outcome

    def _class_count(self) -> int:
        if not self._is("classification"):
            return 0
        return len(self.page["classes"] or self.page["confusion"] or ())

    def _classes(self) -> list[str] | None:
        return self.page["classes"] if self._is("classification") else None


def read_splits(directory: Path) -> list[Split]:
    """Returns the evaluations in a directory of reports, the test data's first; other JSON files do not count.

    Raises:
      UsageError: A file is damaged, or another version's.
    """
    splits = [_read(path, page) for path, page in read_pages(directory)]
    return sorted(splits, key=lambda split: _FIRST.index(split.name) if split.name in _FIRST else len(_FIRST))


def read_pages(directory: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Returns what was found on each set of data without its rows, by file; other JSON files do not count.

    Raises:
      UsageError: A file is damaged, or another version's.
    """
    files = [(path, storage.read_json(path)) for path in sorted(directory.glob("*.json"))]
    found = [(path, page) for path, page in files if isinstance(page, dict) and {"format", "split"} <= page.keys()]
    for path, page in found:
        if page["format"] != FORMAT:
            raise UsageError(
                f"{str(path)!r} has format {page['format']!r}, and this version reads {FORMAT}: evaluate again"
            )
    return found


def _read(path: Path, page: Mapping[str, Any]) -> Split:
    table = _table(path.with_suffix(".parquet"))
    if table is not None and table.num_rows != page["rows"]:
        raise UsageError(
            f"{str(path)!r} speaks of {page['rows']} samples, the Parquet file beside it has {table.num_rows}: "
            "they are not of one evaluation; evaluate again"
        )
    return Split(page, table)


def _table(path: Path) -> pa.Table | None:
    if not path.is_file():
        return None
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"{str(path)!r} cannot be read, evaluate again: {error}") from error
