"""The configuration of a run, to be read; and where those of several differ."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from everstep import redaction


def read(directory: Path) -> str:
    """Returns the text of a run's configuration without secrets: `config.yaml`, or the only YAML file; "" for none."""
    files = sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")])
    stored = directory / "config.yaml"
    chosen = stored if stored in files else files[0] if len(files) == 1 else None
    return redaction.text(chosen.read_text("utf-8", errors="replace")) if chosen else ""


def differences(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns every key whose value is not the same in all texts: `key`, and `values`, one text or None for each."""
    flat = [dict(_leaves(_parsed(text), "")) for text in texts]
    keys = list(dict.fromkeys(key for leaves in flat for key in leaves))
    rows = [{"key": key, "values": [leaves.get(key) for leaves in flat]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields dotted keys with their values as text; a list is one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, str(value)
