"""The run's numbers as a table: `history.csv`, one row per logged step, each step exactly once.

    step,loss,accuracy,validation_loss,validation_accuracy
    100,0.31,0.91,,
    200,0.25,0.93,0.28,0.92

**Names of columns.** Training and validation share the row of a step, but never a cell. So a name belongs to one:

1. Training owns the plain name of everything that it logs: `accuracy`.
2. Validation's names are taken as they come, unless training owns the name: then `validation_` is put in front.
3. If validation logs a name first, its column has the plain name until training logs the same name. Then validation's
   column is renamed, also in the rows that are written: an `accuracy` of step 0 becomes its `validation_accuracy`.
4. After a resume, the file does not tell whose its columns are. The first evaluation decides: if one of its names is
   in no column, plain or with `validation_`, then no evaluation was logged before, and all columns are training's.
"""

import csv
import io
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.tracking.appending import append
from everstep.tracking.tracker import LogKind, Tracker, plain

logger = logging.getLogger(__name__)

Row = dict[str, str]
"""Column to cell; the cells of a row as they stand in the file."""


class HistoryTracker(Tracker):
    """Writes `history.csv`: `step`, then every name in order of its first appearance.

    Train and validation logs of one step share its row. A row is appended when the next step is logged or at
    `flush`; what changes older content (a new column, a late number for a row already written, a resume)
    rewrites the file atomically. Floats are written so that reading them gives the same bits.

    A call that fails to write raises OSError and loses nothing: what it could not write stays in memory until the
    next call.

    Args:
      path: The file; its directory must exist when the first row is written.
    """

    def __init__(self, path: storage.PathLike) -> None:
        self._path = Path(path)
        self._columns = ["step"]
        self._header: list[str] = []  # the columns that the file has
        self._waiting: dict[int, Row] = {}  # rows by step that are not in the file
        self._pending_renames: dict[str, str] = {}  # rule 3: columns that still have their former name in the file
        self._cut: int | None = None  # the step beyond which the rows in the file do not count
        self._last_step = -1
        self._train_owned: set[str] = set()  # rule 1
        self._validation_first: set[str] = set()  # rule 3: plain names that so far only validation has logged
        self._owner_unknown: set[str] = set()  # rule 4: columns of earlier attempts

    def start(self, step: int) -> None:
        """Cuts the rows beyond `step`, and a last line that a kill left unfinished.

        Raises:
          UsageError: The file is not a history, or cannot be read.
        """
        try:
            text = self._text()
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", key="history.csv", received=str(self._path), remedy="move it away"
            ) from error
        header, rows = _parse(text)
        if header[0] != "step":
            raise UsageError(
                "is not the history of a run", key="history.csv", received=str(self._path), remedy="move it away"
            )
        if skipped := sum(not _is_row(row) for row in rows):
            logger.warning("%s: skipped %d lines that are not rows of a history", self._path, skipped)
        kept = [row for row in rows if _is_row(row) and int(row["step"]) <= step]
        # Formatting everything again, to compare it, would take longer than all the rest.
        self._cut = step if text and (len(kept) < len(rows) or not text.endswith("\n")) else None
        self._header = header if text else []
        self._last_step = max((int(row["step"]) for row in kept), default=-1)
        self._waiting = {number: row for number, row in self._waiting.items() if number <= step}
        self._learn_columns(header)
        self._write([])

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Adds `logs` to the row of `step`; figures of the machine belong to no step, and are skipped."""
        if kind == "system":
            return
        if kind == "validation":
            self._decide_owners(logs)
        cells = {self._column(name, kind): repr(value) for name, value in plain(logs).items()}
        self._add_columns(cells)
        self._waiting.setdefault(step, {"step": str(step)}).update(cells)
        self._write([other for other in self._waiting if other != step])

    def flush(self) -> None:
        """Writes the open row; numbers of the same step that come later still join it."""
        self._write(list(self._waiting))

    def close(self) -> None:
        """Writes the open row."""
        self.flush()

    def _learn_columns(self, header: list[str]) -> None:
        """Begins with the columns of the file, and of the rows that wait."""
        self._columns = [self._pending_renames.get(name, name) for name in header]
        self._add_columns(name for row in self._waiting.values() for name in row)
        self._owner_unknown = set(self._columns)

    def _add_columns(self, names: Iterable[str]) -> None:
        self._columns += [name for name in dict.fromkeys(names) if name not in self._columns]

    def _write(self, steps: list[int]) -> None:
        """Writes the rows of these steps, and whatever could not be written before."""
        if not steps and not self._pending_renames and self._cut is None:
            return
        rows = {step: self._waiting[step] for step in sorted(steps)}
        if self._can_append(steps):
            self._append(rows.values())
        else:
            self._rewrite(rows)
        self._last_step = max([self._last_step, *steps])
        for step in steps:
            del self._waiting[step]

    def _can_append(self, steps: list[int]) -> bool:
        same = self._header == self._columns and self._cut is None and self._path.exists()
        return same and min(steps, default=-1) > self._last_step

    def _append(self, rows: Iterable[Row]) -> None:
        # One unbuffered write: a kill leaves whole lines, or a torn one that `start` recognises.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            append(descriptor, _lines(self._columns, rows).encode("utf-8"))
        finally:
            os.close(descriptor)

    def _rewrite(self, new: Mapping[int, Row]) -> None:
        """Rewrites the file, with new rows merged into those of their steps."""
        rows = {int(row["step"]): row for row in self._rows()}
        for step, row in new.items():
            rows[step] = rows.get(step, {}) | row
        storage.write_text(self._path, _format(self._columns, [rows[step] for step in sorted(rows)]))
        self._header, self._pending_renames, self._cut = list(self._columns), {}, None

    def _rows(self) -> list[Row]:
        """Returns the rows in the file that count, with the names that columns have now."""
        rows = [row for row in _parse(self._text())[1] if _is_row(row)]
        return [
            _renamed(row, self._pending_renames) for row in rows if self._cut is None or int(row["step"]) <= self._cut
        ]

    def _text(self) -> str:
        return self._path.read_text("utf-8", errors="replace") if self._path.exists() else ""

    def _decide_owners(self, logs: Mapping[str, float]) -> None:
        """Applies rule 4 to the names of the first evaluation after a start."""
        if any(not {name, f"validation_{name}"} & self._owner_unknown for name in logs):
            self._train_owned |= self._owner_unknown
        self._owner_unknown = set()

    def _column(self, name: str, kind: LogKind) -> str:
        """Returns the column of a name, by the rules above."""
        prefixed = f"validation_{name}"
        if kind == "train":
            self._train_owned.add(name)  # rule 1
            if name in self._validation_first:
                self._rename(name, prefixed)  # rule 3
            return name
        if name in self._train_owned or prefixed in self._columns:
            return prefixed  # rule 2
        if name not in self._columns:
            self._validation_first.add(name)
        return name

    def _rename(self, old: str, new: str) -> None:
        """Renames a column: in the rows that wait now, in the file with the next rewrite."""
        self._validation_first.remove(old)
        names = {old: new}
        self._waiting = {step: _renamed(row, names) for step, row in self._waiting.items()}
        self._columns = [names.get(name, name) for name in self._columns]
        if old in self._header:
            self._pending_renames[old] = new


def epoch_table(epochs: Sequence[int], history: Mapping[str, Sequence[float]]) -> str:
    """Returns the history of `fit` as a table in the form of `history.csv`: `epoch`, then a column for each metric.

    It reads as the DataFrame of the history: `pandas.read_csv(path, index_col=0)`. Floats read back to the same bits; a
    cell is empty where a metric has no value for an epoch.
    """
    rows = [
        {"epoch": str(epoch)} | {name: repr(float(values[at])) for name, values in history.items() if at < len(values)}
        for at, epoch in enumerate(epochs)
    ]
    return _format(["epoch", *history], rows)


def _renamed(row: Row, names: Mapping[str, str]) -> Row:
    return {names.get(name, name): cell for name, cell in row.items()}


def _is_row(row: Row) -> bool:
    """Returns whether a row is whole: two lines that a full disk joined are not, nor is one without a step."""
    return row.get("step", "").isdecimal()


def _lines(columns: list[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


def _format(columns: list[str], rows: list[Row]) -> str:
    return _lines(columns, [dict(zip(columns, columns, strict=True)), *rows])


def _parse(text: str) -> tuple[list[str], list[Row]]:
    """Returns columns and rows of a file's text; an unfinished last line does not count."""
    lines = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    columns = next(lines, []) or ["step"]
    return columns, _rows(columns, lines)


def _rows(columns: list[str], lines: Iterable[list[str]]) -> list[Row]:
    """Returns lines as rows, with the cells that are not empty; a line with too many cells is a row without a step."""
    width, rows = len(columns), []
    for cells in lines:
        if len(cells) > width:
            rows.append(Row())
        elif cells:
            rows.append({name: cell for name, cell in zip(columns, cells, strict=False) if cell})
    return rows


def read_history(path: Path) -> tuple[list[str], list[tuple[int, Row]]]:
    """Returns the columns of a `history.csv`, and for each row its step and non-empty cells.

    Both are empty if it does not exist, or cannot be read. An unfinished last line, and lines that are not rows, do not
    count.
    """
    try:
        columns, rows = _parse(path.read_text("utf-8", errors="replace"))
    except OSError:
        return [], []
    return columns[1:], [(int(row.pop("step")), row) for row in rows if _is_row(row)]


class HistoryReader:
    """Reads a `history.csv` that another process writes: each call of `read` returns only what is new.

    A run appends rows; where it rewrites the file, as after a resume, everything is new.

    Args:
      path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = (0, 0)  # device and inode of the file that was read
        self._end = 0  # bytes read so far, whole lines
        self._columns: list[str] = []

    def read(self) -> tuple[bool, list[tuple[int, Row]]]:
        """Returns whether to forget earlier rows, and the new rows: the step and the non-empty cells of each.

        Raises:
          OSError: The file cannot be read.
        """
        with open(self._path, "rb") as file:
            found = os.fstat(file.fileno())
            anew = (found.st_dev, found.st_ino) != self._file or found.st_size < self._end
            begin = 0 if anew else self._end
            file.seek(begin)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1].decode("utf-8", errors="replace")
        lines = csv.reader(io.StringIO(whole, newline=""))
        if anew:
            self._columns = next(lines, []) or ["step"]
        rows = _rows(self._columns, lines)
        self._file, self._end = (found.st_dev, found.st_ino), begin + data.rfind(b"\n") + 1
        return anew, [(int(row.pop("step")), row) for row in rows if _is_row(row)]
