"""A copy of a project, so that a run can be reproduced without touching the original.

Code and configuration are copied, with the values of the run; data is linked, or copied where a task may write.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.config import dialect

_NEVER = (".*", "__pycache__")
_SKIPPED = ("runs", "*.db", "mlartifacts", "mlruns")  # of the project's folder itself: code may have such names
_WRITTEN = ("model", "report")
_CONFIG = ("parameters.yaml", "catalog.yaml", "optimizer.yaml")


def copy_component_project(root: Path, source: str, into: Path) -> None:
    """Copies the code of a project of components, which has to be inside it, and links everything else."""
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
    """Copies a project of flows, with the configuration of the run in its `config/`.

    Args:
      root: The project.
      into: The folder of the copy.
      settings: The resolved configuration of the task: `task`, `parameters`, `catalog`, `optimizer`.
    """
    shutil.copytree(root, into, ignore=_ignored(root, into, "config", "data"), symlinks=True)
    # Files are removed and written in what follows: nothing of it may be a link to the original.
    _copy_whole(root / "config", into / "config")
    (into / "data").mkdir()
    for entry in (root / "data").iterdir() if (root / "data").is_dir() else ():
        if entry.name in _WRITTEN:
            (into / "data" / entry.name).mkdir()
        elif not entry.is_dir():
            os.symlink(entry.resolve(), into / "data" / entry.name)
        elif entry.name == "raw":
            _link_each(entry, into / "data" / entry.name)
        else:
            _copy_whole(entry, into / "data" / entry.name)
    _write_config(root, into / "config", settings)


def _ignored(root: Path, into: Path, *others: str) -> Callable[[str, list[str]], set[str]]:
    """Returns the `ignore` function for `copytree`: some of the project's folder, environments, and the copy itself."""
    never, first, made = shutil.ignore_patterns(*_NEVER), shutil.ignore_patterns(*_SKIPPED, *others), into.resolve()

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
    """Links the entries of a folder, so that new files of a task are not added to the original."""
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
    """Returns a catalog whose paths outside the project also work from a copy of it."""
    if not isinstance(catalog, dict):
        return catalog
    found = {name: _reached(value, root) for name, value in catalog.items()}
    path = found.get("filepath")
    if isinstance(path, str) and os.path.normpath(path).split(os.sep)[0] == os.pardir:
        found["filepath"] = os.path.normpath(root / path)
    return found
