"""Rows of Hugging Face datasets and of ArrayRecord files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep.data.records.records import Records, Row, require_columns
from everstep.data.records.text_files import TEXT
from everstep.errors import UsageError, missing_extra


class HuggingFace(Records):
    """The rows of a `datasets.Dataset`.

    Args:
      dataset: The dataset.
      key: The configuration key that names it, for errors.
      columns: The columns to read; None for all.
      path: The folder that it was loaded from, if any.

    Raises:
      UsageError: A column is missing.
    """

    def __init__(self, dataset: Any, key: str, columns: Sequence[str] | None = None, path: str = "") -> None:
        super().__init__(key)
        self._path = path
        require_columns(columns, dataset.column_names, key, path or "the dataset")
        self._dataset = dataset.select_columns(list(columns)) if columns else dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(self._dataset.column_names)

    @property
    def files(self) -> Sequence[str]:
        """The Arrow files of the dataset; none if it is in memory."""
        return [file["filename"] for file in self._dataset.cache_files]

    def where(self, number: int) -> str:
        """Returns the folder, if known, and the number of a row in the dataset."""
        return f"{self._path or 'the dataset'}, row {number}"

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the rows of these numbers."""
        return self._dataset.__getitems__(list(numbers)) if numbers else []


def is_saved_dataset(path: str) -> bool:
    """Whether a folder was written by `save_to_disk` of `datasets`."""
    return any(Path(path, name).is_file() for name in ("state.json", "dataset_dict.json"))


def open_saved_dataset(path: str, key: str, columns: Sequence[str] | None = None) -> HuggingFace:
    """Returns the rows of a folder that `save_to_disk` of `datasets` wrote.

    Raises:
      UsageError: The folder has several datasets, or cannot be read.
    """
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "text", "a Hugging Face dataset") from None
    if Path(path, "dataset_dict.json").is_file():
        splits = json.loads(Path(path, "dataset_dict.json").read_text("utf-8")).get("splits", [])
        remedy = " or ".join(repr(str(Path(path, split))) for split in splits)
        raise UsageError("has several datasets, its splits", key=key, received=path, remedy=f"name one: {remedy}")
    try:
        return HuggingFace(datasets.load_from_disk(path), key, columns, path)
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UsageError(f"cannot be read as a dataset: {reason}", key=key, received=path) from error


class ArrayRecord(Records):
    """The records of one ArrayRecord file, read through Grain.

    Args:
      path: The file.
      key: The configuration key that names it, for errors.
      form: What a record is: `json`, `text` (UTF-8, in the column `text`), or `bytes` (in the column `record`).
    """

    def __init__(self, path: str, key: str, form: str = "json") -> None:
        super().__init__(key)
        self._path, self._form = path, form
        try:
            import grain.sources
        except ImportError:
            raise missing_extra("grain", "grain", "an ArrayRecord file") from None
        try:
            self._source = grain.sources.ArrayRecordDataSource([path])
            self._size = len(self._source)
        except (RuntimeError, ValueError, OSError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise UsageError(f"cannot be read as ArrayRecord: {reason}", key=key, received=path) from error

    def __len__(self) -> int:
        return self._size

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the first record."""
        return tuple(self[0]) if len(self) else ()

    @property
    def files(self) -> Sequence[str]:
        """The file."""
        return [self._path]

    def where(self, number: int) -> str:
        """Returns the file, and the number of a record in it."""
        return f"{self._path}, row {number}"

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the records of these numbers."""
        try:
            records = self._source.__getitems__(list(numbers)) if numbers else []
        except (RuntimeError, ValueError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise UsageError(f"is damaged: {reason}", key=self.key, received=self._path) from error
        return [self._parsed(number, data) for number, data in zip(numbers, records, strict=True)]

    def _parsed(self, number: int, data: bytes) -> Row:
        if self._form == "bytes":
            return {"record": data}
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(number, f"byte {error.start} of the record is not UTF-8") from None
        if self._form == "text":
            return {TEXT: text}
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(number, f"is not JSON: {error or type(error).__name__}") from None
        if not isinstance(row, dict):
            raise self.error(number, f"expected a JSON object with a value per column, not a {type(row).__name__}")
        return row
