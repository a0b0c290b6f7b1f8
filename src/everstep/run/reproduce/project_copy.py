"""A project beside the original, so that a run of it can be done again without touching what is there.

Code and configuration are copied, with the values that the run had; data is linked, or copied where a task may write.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.config import dialect

_NEVER = (".*", "__pycache__")
_LEFT_OUT = ("runs", "*.db", "mlartifacts", "mlruns")  # of the project's folder itself: code may have such names
_MADE_ANEW = ("model", "report")
_CONFIG = ("parameters.yaml", "catalog.yaml", "optimizer.yaml")


def copy_component_project(root: Path, source: str, into: Path) -> None:
    """Copies the code of a project of components, which has to be within it, and links all else."""
    into.mkdir(parents=True, exist_ok=True)
    top = Path(source).parts[0] if Path(source).parts else "."
    if top == ".":
        shutil.copytree(root, into, ignore=_ignored(root, into), dirs_exist_ok=True, symlinks=True)
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
    shutil.copytree(root, into, ignore=_ignored(root, into, "config", "data"), symlinks=True)
    # Files are removed and written in what follows: nothing of it may be a link to the original.
    _copy_whole(root / "config", into / "config")
    (into / "data").mkdir()
    for entry in (root / "data").iterdir() if (root / "data").is_dir() else ():
        if entry.name in _MADE_ANEW:
            (into / "data" / entry.name).mkdir()
        elif not entry.is_dir():
            os.symlink(entry.resolve(), into / "data" / entry.name)
        elif entry.name == "raw":
            _link_each(entry, into / "data" / entry.name)
        else:
            _copy_whole(entry, into / "data" / entry.name)
    _write_config(root, into / "config", settings)


def _ignored(root: Path, into: Path, *others: str) -> Callable[[str, list[str]], set[str]]:
    """Returns what tells `copytree` what to leave out: some of the project's folder, environments, and the copy."""
    never, first, made = shutil.ignore_patterns(*_NEVER), shutil.ignore_patterns(*_LEFT_OUT, *others), into.resolve()

    def ignore(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder, name) for name in names}
        strange = {name for name, path in paths.items() if path.resolve() == made or (path / "pyvenv.cfg").is_file()}
        return {*never(folder, names), *(first(folder, names) if Path(folder) == root else ()), *strange}

    return ignore


def _copy_whole(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore_dangling_symlinks=True)
    else:
        target.mkdir(parents=True)


def _link_each(source: Path, target: Path) -> None:
    """Links what is in a folder: what a task adds there is not added to the original."""
    target.mkdir()
    for entry in source.iterdir():
        os.symlink(entry.resolve(), target / entry.name, target_is_directory=entry.is_dir())


def _write_config(root: Path, config: Path, settings: dict[str, Any]) -> None:
    has_optimizer = any((folder / "optimizer.yaml").is_file() for folder in (config, config / "local"))
    for name in _CONFIG:
        for folder in (config, config / "local"):
            (folder / name).unlink(missing_ok=True)
    catalog = _reached(settings["catalog"], root)
    values = {"parameters.yaml": {settings["task"]: settings["parameters"]}, "catalog.yaml": catalog}
    if settings.get("experiment"):
        values["parameters.yaml"] = {"experiment": settings["experiment"], **values["parameters.yaml"]}
    values |= {"optimizer.yaml": settings["optimizer"]} if has_optimizer else {}
    for name, tree in values.items():
        storage.write_text(config / name, dialect.dump(tree))


def _reached(catalog: Any, root: Path) -> Any:
    """Returns a catalog whose paths that lead out of the project lead to the same places from a copy of it."""
    if not isinstance(catalog, dict):
        return catalog
    found = {name: _reached(told, root) for name, told in catalog.items()}
    path = found.get("filepath")
    if isinstance(path, str) and os.path.normpath(path).split(os.sep)[0] == os.pardir:
        found["filepath"] = os.path.normpath(root / path)
    return found
