"""What a SavedModel says of where it comes from: `assets.extra/everstep.json`, beside what is TensorFlow's."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import storage

_FILE = Path("assets.extra", "everstep.json")


def write(directory: Path, origin: Mapping[str, Any]) -> None:
    """Writes it into a SavedModel."""
    (directory / _FILE).parent.mkdir(exist_ok=True)
    storage.write_json(directory / _FILE, origin)


def read(directory: Path) -> dict[str, Any] | None:
    """Returns it; None for a directory that says nothing, which is somebody else's."""
    try:
        origin = json.loads((directory / _FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return origin if isinstance(origin, dict) else None
