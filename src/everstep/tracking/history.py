"""The run's numbers as a table: `history.csv`, one row per logged step, each step exactly once."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.tracking.tracker import Kind, Tracker, plain

Row = dict[str, str]
"""Column to cell; the cells of a row as they stand in the file."""


class HistoryTracker(Tracker):
    """Writes `history.csv`: `step`, then every name in order of its first appearance.

    Train and validation logs of one step share its row. A row is appended when the next step is logged or at
    `flush`; what changes older content (a new column, a late number for a row already written, a resume)
    rewrites the file atomically. Floats are written so that reading them gives the same bits.

    Validation names are taken as they come; one that training uses as well gets `validation_` in front,
    because the two numbers must not share a cell.

    Args:
      path: The file; its directory must exist when the first row is written.
    """

    def __init__(self, path: storage.PathLike) -> None:
        self._path = Path(path)
        self._columns = ["step"]
        self._row: Row = {}
        self._last_step = -1
        self._train_names: set[str] = set()
        self._borrowed: set[str] = set()  # plain names that so far only validation has used
        self._found: set[str] = set()  # columns of earlier attempts, as long as nobody knows whose they are

    def start(self, step: int) -> None:
        """Cuts the rows beyond `step`, and a last line that a kill left unfinished.

        Raises:
          UsageError: The file is somebody else's.
        """
        self._row = {}
        text = self._path.read_text("utf-8") if self._path.exists() else ""
        self._columns, rows = _parse(text)
        if self._columns[0] != "step":
            raise UsageError(f"{str(self._path)!r} is no history of a run: move it away")
        kept = [row for row in rows if int(row["step"]) <= step]
        if (cut := _format(self._columns, kept)) != text and text:
            storage.write_text(self._path, cut)
        self._last_step = max((int(row["step"]) for row in kept), default=-1)
        self._found = set(self._columns)

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Adds `logs` to the row of `step`."""
        if self._row and int(self._row["step"]) != step:
            self.flush()
        if kind == "validation":
            self._learn_owners(logs)
        cells = {self._column(name, kind): repr(value) for name, value in plain(logs).items()}
        self._row = {"step": str(step), **self._row, **cells}

    def flush(self) -> None:
        """Writes the open row; numbers of the same step that come later still join it."""
        if not self._row:
            return
        new = [column for column in self._row if column not in self._columns]
        if new or int(self._row["step"]) <= self._last_step or not self._path.exists():
            self._columns += new
            self._rewrite(self._row)
        else:
            self._append(self._row)
        self._last_step = max(self._last_step, int(self._row["step"]))
        self._row = {}

    def close(self) -> None:
        """Writes the open row."""
        self.flush()

    def _append(self, row: Row) -> None:
        # One unbuffered write: a kill leaves the whole line or a torn one that `start` recognises.
        with open(self._path, "ab", buffering=0) as file:
            file.write(_lines(self._columns, [row]).encode("utf-8"))

    def _rewrite(self, row: Row) -> None:
        """Writes the file anew with `row` merged into the row of its step."""
        rows = {int(old["step"]): old for old in self._rows()}
        rows[int(row["step"])] = rows.get(int(row["step"]), {}) | row
        storage.write_text(self._path, _format(self._columns, [rows[step] for step in sorted(rows)]))

    def _rows(self) -> list[Row]:
        return _parse(self._path.read_text("utf-8"))[1] if self._path.exists() else []

    def _learn_owners(self, logs: Mapping[str, float]) -> None:
        """Learns, at the first evaluation after a start, whose the columns are that were there.

        Where one of its names is new, there was no evaluation before, and all of them are training's.
        """
        if any(not {name, f"validation_{name}"} & self._found for name in logs):
            self._train_names |= self._found
        self._found = set()

    def _column(self, name: str, kind: Kind) -> str:
        """Returns the column of a name; training's claim to the plain name goes before validation's."""
        own = f"validation_{name}"
        if kind == "train":
            self._train_names.add(name)
            if name in self._borrowed:
                self._rename(name, own)
            return name
        if name in self._train_names or own in self._columns:
            return own
        if name not in self._columns:
            self._borrowed.add(name)
        return name

    def _rename(self, old: str, new: str) -> None:
        self._borrowed.remove(old)
        self._row = _renamed(self._row, old, new)
        if old in self._columns:
            rows = [_renamed(row, old, new) for row in self._rows()]
            self._columns[self._columns.index(old)] = new
            storage.write_text(self._path, _format(self._columns, rows))


def _renamed(row: Row, old: str, new: str) -> Row:
    return {new if name == old else name: cell for name, cell in row.items()}


def _lines(columns: list[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


def _format(columns: list[str], rows: list[Row]) -> str:
    return _lines(columns, [dict(zip(columns, columns, strict=True)), *rows])


def _parse(text: str) -> tuple[list[str], list[Row]]:
    """Returns columns and rows of a file's text; an unfinished last line does not count."""
    whole = text[: text.rfind("\n") + 1]
    reader = csv.DictReader(io.StringIO(whole, newline=""))
    rows = [{name: cell for name, cell in row.items() if cell} for row in reader]
    return list(reader.fieldnames or ["step"]), rows
