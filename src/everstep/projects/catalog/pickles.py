"""Pickles, which run any code when they are loaded: only where the project's `pyproject.toml` allows them."""

import gzip
import importlib
from pathlib import Path
from typing import Any

from everstep.config import allows_pickle
from everstep.errors import UsageError
from everstep.projects.catalog.data_type import DataType

NAME = "pickle"
"""The name of the type."""


class Pickle(DataType):
    """Any Python value."""

    suffixes = (".pkl", ".pickle", ".pkl.gz")

    def load(self, path: Path) -> Any:
        """Returns the value of a file; a `.gz` file is unpacked."""
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return importlib.import_module(NAME).load(file)

    def save(self, value: Any, path: Path) -> None:
        """Writes a value."""
        data = importlib.import_module(NAME).dumps(value)
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    def require_permission(self, root: Path) -> None:
        """Raises a UsageError unless `[tool.everstep] allow-pickle = true` stands in the project's `pyproject.toml`."""
        if not allows_pickle(root):
            file = root / "pyproject.toml"
            remedy = f"if you trust it, set [tool.everstep] allow-pickle = true in {file}; else save npz or parquet"
            raise UsageError("a pickle can run any code when it is loaded", remedy=remedy)
