"""Sources that a record can name, so that they are opened again without the program: images and Parquet files."""

import os
from collections.abc import Mapping
from typing import Any

from everstep.checkpoint.remote import is_url
from everstep.data.images.config import ImageDataConfig
from everstep.data.images.sources import ImageSource
from everstep.data.parquet import ParquetSource

NamedSource = ImageSource | ParquetSource


def source_record(source: Any) -> dict[str, Any] | None:
    """Returns what opens a source again, as plain values; None for data that has no name, such as arrays."""
    if isinstance(source, ImageSource):
        given, default = source.config.as_dict(), ImageDataConfig().as_dict()
        config = {key: value for key, value in given.items() if value != default[key]}
        return {"images": config, "classes": source.classes, "directory": os.getcwd()}
    if isinstance(source, ParquetSource):
        return {"parquet": {"path": source.path, "x": source.x, "y": source.y}, "directory": os.getcwd()}
    return None


def open_source(record: Mapping[str, Any]) -> NamedSource:
    """Returns the source that a record names; paths are relative to the folder in which it was written, if that exists.

    Raises:
      UsageError: The data is not there any more, or cannot be read.
    """
    folder = str(record.get("directory") or "")
    folder = folder if os.path.isdir(folder) else ""
    if "images" in record:
        config = dict(record["images"])
        config["input_path"] = _below(folder, config.get("input_path", ""))
        return ImageSource(ImageDataConfig(config), record.get("classes") or ())
    named = dict(record["parquet"])
    return ParquetSource(_below(folder, named["path"]), named.get("x"), named.get("y"))


def named_path(record: Mapping[str, Any]) -> str:
    """Returns the files that a record names, for people."""
    path = record.get("images", {}).get("input_path") or record.get("parquet", {}).get("path") or ""
    return ", ".join([path] if isinstance(path, str) else map(str, path))


def _below(folder: str, paths: Any) -> list[str]:
    listed = [paths] if isinstance(paths, str) else list(paths)
    parts = [part.strip() for entry in listed for part in entry.split(",") if part.strip()]
    return [part if is_url(part) else os.path.join(folder, part) for part in parts]
