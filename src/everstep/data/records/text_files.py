"""Rows of files that are read as text: JSON lines, CSV, lines, paragraphs, whole documents.

One pass over a file finds where its rows begin and end; after that, any row is one read. Text is UTF-8.
"""

import csv
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from everstep.data.records.records import Records, Row, require_columns

_CHUNK = 1 << 24  # bytes read at once while a file is indexed
_BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_BLANK_LINES = re.compile(rb"\n[ \t\r]*\n\s*")

TEXT = "text"
"""The only column of plain text."""


class SpansOfFile(Records):
    """Rows that are spans of bytes of one file.

    Attributes:
      name: The file as errors name it: where an unpacked copy is read, the compressed file.

    Args:
      path: The file.
      key: The configuration key that names it, for errors.
      spans: Where each row begins and ends, int64 of shape (rows, 2).
    """

    def __init__(self, path: str, key: str, spans: np.ndarray) -> None:
        super().__init__(key)
        self._path, self._spans = path, spans
        self.name = path

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def files(self) -> Sequence[str]:
        """The file."""
        return [self.name]

    def where(self, number: int) -> str:
        """Returns the file, and the line in which a row begins."""
        return f"{self.name}, line {self._line(int(self._spans[number][0]))}"

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the rows of these numbers."""
        with open(self._path, "rb", buffering=0) as file:  # no handle stays open: copies go to other processes
            return [self._parsed(number, self._text(number, self._bytes(file, number))) for number in numbers]

    def _bytes(self, file: Any, number: int) -> bytes:
        start, end = self._spans[number].tolist()
        file.seek(start)
        data = file.read(end - start)
        while len(data) < end - start and (more := file.read(end - start - len(data))):  # a large row in pieces
            data += more
        return data

    def _text(self, number: int, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            start = int(self._spans[number][0]) + error.start
            raise self.error(
                number,
                f"byte {start} of the file, {data[error.start : error.start + 1]!r}, is not UTF-8",
                remedy="convert the file to UTF-8",
            ) from None

    def _parsed(self, number: int, text: str) -> Row:
        """Returns the row of its text."""
        return {TEXT: text}

    @property
    def columns(self) -> tuple[str, ...]:
        """The column `text`."""
        return (TEXT,)

    def _line(self, offset: int) -> int:
        """Returns the number of the line at an offset, from 1."""
        with open(self._path, "rb") as file:
            return 1 + sum(file.read(min(_CHUNK, offset - start)).count(b"\n") for start in range(0, offset, _CHUNK))


class TextLines(SpansOfFile):
    """Plain text, a row for each line that is not blank."""

    def __init__(self, path: str, key: str) -> None:
        super().__init__(path, key, _lines(path))


class Paragraphs(SpansOfFile):
    """Plain text, a row for each paragraph; blank lines separate them."""

    def __init__(self, path: str, key: str) -> None:
        super().__init__(path, key, _paragraphs(path))


class WholeFile(SpansOfFile):
    """Plain text, one row with the whole file."""

    def __init__(self, path: str, key: str) -> None:
        super().__init__(path, key, np.array([[_start(path), os.path.getsize(path)]], np.int64))

    def where(self, number: int) -> str:
        """Returns the file."""
        return self.name


class JsonLines(SpansOfFile):
    """A JSON object in each line; blank lines are skipped."""

    def __init__(self, path: str, key: str) -> None:
        super().__init__(path, key, _lines(path))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the first row; others may have more, or fewer."""
        return tuple(self[0]) if len(self) else ()

    def _parsed(self, number: int, text: str) -> Row:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            remedy = "write one object per line, not an array" if number == 0 and text.lstrip()[:1] == "[" else ""
            raise self.error(number, f"is not JSON: {error or type(error).__name__}", remedy=remedy) from None
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise self.error(number, f"expected a JSON object with a value per column, not a {kind}")
        return row


class Csv(SpansOfFile):
    """A table with the names of its columns in the first line; every value is text.

    Args:
      path: The file.
      key: The configuration key that names it, for errors.
      delimiter: What separates the values of a row.
      columns: The columns that must exist.

    Raises:
      UsageError: A column is missing, or exists twice.
    """

    def __init__(self, path: str, key: str, delimiter: str = ",", columns: Sequence[str] | None = None) -> None:
        spans = _lines(path, quoted=True)
        super().__init__(path, key, spans[1:])
        self._delimiter = delimiter
        self._columns: tuple[str, ...] = ()
        if len(spans):
            header = SpansOfFile(path, key, spans[:1])
            self._columns = tuple(name.strip() for name in self._values(header, 0, header[0][TEXT]))
            if doubled := sorted({name for name in self._columns if self._columns.count(name) > 1}):
                raise header.error(0, f"the column {doubled[0]!r} exists twice")
        require_columns(columns, self._columns, key, path)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names in the first line."""
        return self._columns

    def _parsed(self, number: int, text: str) -> Row:
        values = self._values(self, number, text)
        if len(values) != len(self._columns):
            reason = f"has {len(values)} values, but the first line names {len(self._columns)} columns"
            raise self.error(number, reason, remedy="quote values that contain the delimiter")
        return dict(zip(self._columns, values, strict=True))

    def _values(self, rows: Records, number: int, text: str) -> list[str]:
        try:
            return next(csv.reader([text], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            raise rows.error(number, f"is not CSV: {error}") from None


def _start(path: str) -> int:
    """Returns where the text begins: after a byte order mark, if there is one."""
    with open(path, "rb") as file:
        return len(_BOM) if file.read(len(_BOM)) == _BOM else 0


def _chunks(path: str) -> Iterator[tuple[int, np.ndarray]]:
    """Yields a file's bytes in pieces, and where each begins."""
    offset = 0
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            yield offset, np.frombuffer(data, np.uint8)
            offset += len(data)


def _lines(path: str, quoted: bool = False) -> np.ndarray:
    """Returns where the lines of a file that are not blank begin and end, without their line ends.

    Args:
      path: The file.
      quoted: Whether a newline between quotes belongs to the line, as in CSV.
    """
    ends: list[np.ndarray] = []  # of the newlines
    returns: list[np.ndarray] = []  # whether the byte before each is a carriage return
    quotes, last = 0, 0  # quotes so far; the last byte of the piece before
    for offset, data in _chunks(path):
        at = np.flatnonzero(data == _NEWLINE)
        if quoted:
            quoting = data == _QUOTE
            before = quotes + np.cumsum(quoting)[at]
            quotes += int(np.count_nonzero(quoting))
            at = at[before % 2 == 0]
        previous = np.where(at > 0, data[at - 1], last)
        ends.append(at + offset)
        returns.append(previous == _RETURN)
        last = int(data[-1])
    size = os.path.getsize(path)
    newlines = np.concatenate([*ends, [size]]).astype(np.int64)
    starts = np.concatenate([[_start(path)], newlines[:-1] + 1])
    stops = newlines - np.concatenate([*returns, [last == _RETURN and size > 0]]).astype(np.int64)
    spans = np.stack([starts, stops], axis=1)
    return spans[stops > starts]


def _paragraphs(path: str) -> np.ndarray:
    """Returns where the paragraphs of a file begin and end."""
    with open(path, "rb") as file:
        data = file.read()
    starts, stops, start = [], [], _start(path)
    for blank in _BLANK_LINES.finditer(data, start):
        starts.append(start)
        stops.append(blank.start())
        start = blank.end()
    starts.append(start)
    stops.append(len(data))
    spans = [(a, b) for a, b in zip(starts, stops, strict=True) if data[a:b].strip()]
    return np.array(spans, np.int64).reshape(-1, 2)
