"""What a flow was made in, as files of its run directory: code, packages, machine."""

import os
import sys
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.run import code_diff, surroundings
from everstep.run.environment import code_version, environment

ENVIRONMENT = "environment.json"
"""The file that tells versions, hardware, code and the command."""


def write_surroundings(directory: Path, root: Path) -> list[Path]:
    """Writes `environment.json`, `requirements.txt` and, where there are changes, `code.diff`; returns them.

    Args:
      directory: The run directory.
      root: The project, whose code is described.
    """
    facts = {**environment(), "hardware": hardware(), "code": code_version(root), "command": sys.argv}
    storage.write_json(directory / ENVIRONMENT, redaction.tree(facts))
    surroundings.keep_packages(directory)
    code_diff.keep(directory, root)
    names = (ENVIRONMENT, surroundings.REQUIREMENTS, code_diff.FILE)
    return [directory / name for name in names if (directory / name).is_file()]


def hardware() -> dict[str, Any]:
    """Returns processor, memory and the devices that compute."""
    keras = sys.modules.get("keras")
    devices = [] if keras is None else list(keras.distribution.list_devices())
    processor, count = surroundings.processor(), os.cpu_count()
    return {"processor": processor, "cpu_count": count, "memory_bytes": _memory(), "devices": devices}


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
