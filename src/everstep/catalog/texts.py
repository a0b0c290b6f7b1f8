"""Text, JSON and YAML."""

import gzip
import json
from pathlib import Path
from typing import Any

from everstep.catalog.dataset import Dataset
from everstep.config import dialect
from everstep.config.problem import show
from everstep.errors import UsageError


class Text(Dataset):
    """Text, to the last line break as it is."""

    suffixes = (".txt", ".md", ".log", ".html")

    def load(self, path: Path, *, encoding: str = "utf-8") -> str:
        """Returns the text of a file."""
        return path.read_bytes().decode(encoding)

    def save(self, value: Any, path: Path, *, encoding: str = "utf-8") -> None:
        """Writes text."""
        if not isinstance(value, str):
            raise UsageError(f"expected text, received {show(value)}")
        path.write_bytes(value.encode(encoding))


class Json(Dataset):
    """Numbers, text, lists and mappings. NaN and the infinities are refused: no other program could read them."""

    suffixes = (".json", ".json.gz")

    def load(self, path: Path) -> Any:
        """Returns the value of a file."""
        data = path.read_bytes()
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)

    def save(self, value: Any, path: Path, *, indent: int | None = 2) -> None:
        """Writes a value; NumPy's become plain ones."""
        data = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=_plain) + "\n"
        path.write_bytes(gzip.compress(data.encode(), mtime=0) if path.suffix == ".gz" else data.encode())


class Yaml(Dataset):
    """What config files are written in."""

    suffixes = (".yaml", ".yml")

    def load(self, path: Path) -> Any:
        """Returns the value of a file."""
        return dialect.load(path.read_text("utf-8-sig"))

    def save(self, value: Any, path: Path) -> None:
        """Writes a value."""
        path.write_bytes(dialect.dump(value).encode())


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise UsageError(f"JSON has no form for {show(value)} ({type(value).__name__})")
