"""A project beside the original, so that a run of it can be done again without touching what is there.

Code and configuration are copied, with the values that the run had; data is linked, or copied where a task may write.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.config import dialect

_LEFT_OUT = ("runs", ".*", "__pycache__", "*.db", "mlartifacts", "mlruns")
_MADE_ANEW = ("model", "report")
_CONFIG = ("parameters.yaml", "catalog.yaml", "optimizer.yaml")


def copy_component_project(root: Path, source: str, into: Path) -> None:
    """Copies the code of a project of components, which has to be within it, and links all else."""
    into.mkdir(parents=True, exist_ok=True)
    top = Path(source).parts[0] if Path(source).parts else "."
    if top == ".":
        shutil.copytree(root, into, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True, symlinks=True)
        return
    shutil.copytree(root / top, into / top, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    for entry in root.iterdir():
        if entry.name not in (top, "runs") and not entry.name.startswith(".") and entry.suffix != ".db":
            os.symlink(entry, into / entry.name, target_is_directory=entry.is_dir())


def copy_flow_project(root: Path, into: Path, settings: dict[str, Any]) -> None:
    """Copies a project of flows; its `config/` says what the run had, whatever has become of the files since.

    Args:
      root: The project.
      into: Where to.
      settings: The resolved configuration of the task: `task`, `parameters`, `catalog`, `optimizer`.
    """
    shutil.copytree(root, into, ignore=shutil.ignore_patterns(*_LEFT_OUT, "data"), symlinks=True)
    (into / "data").mkdir(exist_ok=True)
    for entry in (root / "data").iterdir() if (root / "data").is_dir() else ():
        if entry.name in _MADE_ANEW:
            (into / "data" / entry.name).mkdir()
        elif entry.name == "raw" or not entry.is_dir():
            os.symlink(entry.resolve(), into / "data" / entry.name, target_is_directory=entry.is_dir())
        else:
            shutil.copytree(entry, into / "data" / entry.name, symlinks=True)
    _write_config(root / "config", into / "config", settings)


def _write_config(original: Path, config: Path, settings: dict[str, Any]) -> None:
    has_optimizer = any((folder / "optimizer.yaml").is_file() for folder in (original, original / "local"))
    for name in _CONFIG:
        for folder in (config, config / "local"):
            (folder / name).unlink(missing_ok=True)
    values = {"parameters.yaml": {settings["task"]: settings["parameters"]}, "catalog.yaml": settings["catalog"]}
    if settings.get("experiment"):
        values["parameters.yaml"] = {"experiment": settings["experiment"], **values["parameters.yaml"]}
    values |= {"optimizer.yaml": settings["optimizer"]} if has_optimizer else {}
    for name, tree in values.items():
        storage.write_text(config / name, dialect.dump(tree))
