"""What a flow was made in, as files of its run directory: code, packages, machine."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.run import code_diff, surroundings
from everstep.run.record import read

ENVIRONMENT = "environment.json"
"""The file that tells versions, hardware, code and the command."""


def write_surroundings(directory: Path) -> list[Path]:
    """Writes `environment.json`; returns it, and the files of the run's record that belong beside it.

    Args:
      directory: The run directory, with its record.
    """
    record = read(directory)
    facts = {**record["environment"], "hardware": hardware(), "code": record["code"], "command": sys.argv}
    storage.write_json(directory / ENVIRONMENT, redaction.tree(facts))
    names = (ENVIRONMENT, surroundings.REQUIREMENTS, code_diff.FILE)
    return [directory / name for name in names if (directory / name).is_file()]


def hardware() -> dict[str, Any]:
    """Returns processor, memory and the devices that compute."""
    processor, count = surroundings.processor(), os.cpu_count()
    return {"processor": processor, "cpu_count": count, "memory_bytes": _memory(), "devices": _devices()}


def _devices() -> list[str]:
    if "keras" not in sys.modules:
        return []
    return list(importlib.import_module("everstep.engine.accelerator").devices())


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
