"""The configuration of a run, to be read; and where those of several differ."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.run.submitted import FOLDER, RECORD, STARTED

_BLACKED_OUT = re.compile(rf"([:\[,-]\s*)({re.escape(redaction.MARK)})(?=\s|[,\]}}]|$)", re.MULTILINE)
"""A value that redaction has left as three stars, which YAML takes for an alias."""


def read(directory: Path) -> str:
    """Returns the text of a run's configuration without secrets; "" for none.

    It is what the model was trained with, for the run's own file may have been edited since: `exported/config.yaml`,
    else what the newest job was submitted with, else `config.yaml`, or the only YAML file.
    """
    exported = directory / "exported" / "config.yaml"
    chosen = exported if exported.is_file() else _submitted(directory) or _own(directory)
    return redaction.text(chosen.read_text("utf-8", errors="replace")) if chosen else ""


def _submitted(directory: Path) -> Path | None:
    """Returns the copy of the config file that the newest job uses; one that waits has trained nothing."""
    begun = sorted(path.parent for path in (directory / FOLDER).glob(f"*/{STARTED}"))
    with contextlib.suppress(UsageError, KeyError, TypeError):
        copy = begun[-1] / storage.read_json(begun[-1] / RECORD)["config"] if begun else None
        return copy if copy is not None and copy.is_file() else None
    return None


def _own(directory: Path) -> Path | None:
    files = sorted([*directory.glob("*.yaml"), *directory.glob("*.yml")])
    stored = directory / "config.yaml"
    return stored if stored in files else files[0] if len(files) == 1 else None


def differences(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Returns every key whose value is not the same in all texts: `key`, and `values`, one text or None for each.

    A text that is no mapping in YAML is left out: see `incomparable`.
    """
    flat = [dict(_leaves(_parsed(text), "")) for text in texts]
    left_out = incomparable(texts)
    keys = list(dict.fromkeys(key for leaves in flat for key in leaves))
    rows = [{"key": key, "values": [leaves.get(key) for leaves in flat]} for key in keys]
    return [row for row in rows if len({value for i, value in enumerate(row["values"]) if i not in left_out}) > 1]


def incomparable(texts: Sequence[str]) -> list[int]:
    """Returns the places of texts that cannot be compared key by key; none where all are the same text anyway."""
    if len(set(texts)) == 1:
        return []
    return [place for place, text in enumerate(texts) if text.strip() and not isinstance(_parsed(text), dict)]


def _parsed(text: str) -> Any:
    for attempt in (text, _BLACKED_OUT.sub(r"\1'\2'", text)):
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
            return yaml.safe_load(attempt)
    return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields dotted keys with their values as text; a list is one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, str(value)
