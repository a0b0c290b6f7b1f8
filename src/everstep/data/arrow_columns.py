"""Numbers in Arrow's columns as NumPy arrays, a column at a time: no row becomes a Python object."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_FORMATS = (None, "numpy", "torch", "arrow")
"""The formats of Hugging Face datasets whose values are those of the columns, in other containers."""


def column_as_array(column: Any) -> np.ndarray | None:
    """Returns a column of numbers, or of lists of numbers nested to any depth, with an axis for each level.

    The array shares the column's memory where it can, and cannot be written then. None if the column has something
    else, a missing value, or lists of different lengths.

    Args:
      column: A `pyarrow.Array` or `ChunkedArray`.
    """
    import pyarrow as pa

    values, shape = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, [len(column)]
    while True:
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        if values.null_count:
            return None
        if pa.types.is_fixed_size_list(values.type):
            length = values.type.list_size
        elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            lengths = np.unique(np.diff(values.offsets.to_numpy()))
            if len(lengths) != 1:
                return None
            length = int(lengths[0])
        else:
            break
        shape.append(length)
        values = values.flatten()
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return None
    array: np.ndarray = values.to_numpy(zero_copy_only=False).reshape(shape)
    return array


def has_columns(dataset: Any) -> bool:
    """Whether it is a Hugging Face dataset that runs no code of its user to read a row."""
    form = getattr(dataset, "format", None)
    return (
        isinstance(form, Mapping)
        and form.get("type", "") in _FORMATS
        and not form.get("format_kwargs")
        and hasattr(dataset, "with_format")
    )


def in_numpy_format(dataset: Any) -> Any:
    """Returns a dataset for which `has_columns` is true in the format `numpy`, unless it has another one of arrays."""
    form = dataset.format
    return dataset.with_format("numpy", columns=form["columns"]) if form["type"] in (None, "arrow") else dataset


class HuggingFaceColumns:
    """Rows of a Hugging Face dataset as its format `numpy` returns them, converted from Arrow a column at a time.

    The format makes Python objects of every row. So it is asked for one row only, which decides the types, and for
    columns that are not numbers, such as images.

    Args:
      dataset: A dataset for which `has_columns` is true.
    """

    def __init__(self, dataset: Any) -> None:
        self._arrow = dataset.with_format("arrow", columns=dataset.format["columns"])
        self._formatted = in_numpy_format(dataset)
        self._types: dict[str, np.dtype] | None = None  # by column; empty if they cannot be converted here

    def read(self, rows: Sequence[int]) -> dict[str, np.ndarray] | None:
        """Returns the columns of some rows; None if they are not arrays, such as lists of different lengths."""
        if self._types is None:
            self._types = self._find_types()
        return self._converted(rows) or self._as_formatted(rows)

    def _converted(self, rows: Sequence[int]) -> dict[str, np.ndarray] | None:
        if not self._types:
            return None
        table = self._arrow[rows]
        found = {name: column_as_array(table.column(name)) for name in self._types}
        if any(array is None for array in found.values()):
            return None
        return {name: np.array(array, self._types[name]) for name, array in found.items()}

    def _as_formatted(self, rows: Sequence[int]) -> dict[str, np.ndarray] | None:
        """Returns what the dataset makes of the rows, such as decoded images, if that is arrays."""
        batch = self._formatted[rows]
        arrays = isinstance(batch, Mapping) and all(
            isinstance(column, np.ndarray) and column.dtype != object and len(column) == len(rows)
            for column in batch.values()
        )
        return dict(batch) if arrays and batch else None

    def _find_types(self) -> dict[str, np.dtype]:
        """Compares the first row with what the dataset's own format makes of it: that decides the types."""
        table, formatted = self._arrow[[0]], self._formatted[[0]]
        types = {}
        for name in formatted:
            expected = np.asarray(formatted[name])
            array = column_as_array(table.column(name)) if name in table.column_names else None
            if array is None or array.shape != expected.shape or expected.dtype.kind not in "biuf":
                return {}
            if not np.array_equal(array.astype(expected.dtype), expected, equal_nan=expected.dtype.kind == "f"):
                return {}
            types[name] = expected.dtype
        return types
