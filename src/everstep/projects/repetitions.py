"""Runs of projects repeated by `everstep reproduce`: the command, in a copy of the project.

The project stays as it is: code and configuration are copied, with the values that the run had; data is linked, or
copied where a task may write.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.projects.layouts import COMPONENTS, FLOW
from everstep.reproduce import Evidence, NotRepeatable, Repetition, register_repeatable, stored_config
from everstep.run import export_config, loop_directory

_NEVER = (".*", "__pycache__")
_NOT_COPIED = ("runs", "*.db", "mlartifacts", "mlruns")  # of the project's folder itself: code may have such names
_MADE_ANEW = ("model", "report")
_CONFIG = ("parameters.yaml", "catalog.yaml", "optimizer.yaml")


class FlowRuns:
    """Runs of flows."""

    def is_of(self, run: Path, original: Evidence) -> bool:
        """Returns whether the record is that of a flow."""
        return bool(original.record.get("flow"))

    def code_folder(self, run: Path, original: Evidence, project: Path | None) -> Path:
        """Returns the project of a flow: as specified, around the run, as recorded, or around the working directory."""
        recorded = Path(str(original.record["flow"].get("project", "")))
        here = Path.cwd()
        around = [*Path(os.path.abspath(run)).parents, *run.resolve().parents]  # the run, or `runs`, may be a link
        folders = [project.absolute()] if project else [*around, recorded, here, *here.parents]
        for folder in folders:
            if (folder / "config" / "parameters.yaml").is_file():
                return folder
        if project:
            reason = "is not a project of flows: it has no config/parameters.yaml"
            raise UsageError(reason, key="--project", received=str(project))
        reason = f"its code is missing: there is no project {str(recorded)!r}, and none around the run"
        raise NotRepeatable(reason, remedy="specify it with --project DIR")

    def repeat(self, run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
        """Copies the project, to whose files the run would write, with the configuration of the run."""
        stored = run / FLOW.settings
        settings = stored_config(stored if stored.is_file() else run / "config.yaml")
        if not {"task", "parameters", "catalog", "optimizer"} <= settings.keys():
            raise NotRepeatable("its configuration is missing", key=str(stored))
        copy = into / "project"
        copy_flow_project(code, copy, settings)
        words = ["flow", str(settings["task"]), f"--project={copy}", f"--model-dir={into / 'run'}"]
        words.append(f"--backend={original.record['backend']}")
        return Repetition(words, copy, into / "run", {})


class ComponentRuns:
    """Runs of components."""

    def is_of(self, run: Path, original: Evidence) -> bool:
        """Returns whether the loop trained it in a folder inside of the run's."""
        return loop_directory(run) != run

    def code_folder(self, run: Path, original: Evidence, project: Path | None) -> Path:
        """Returns the project: as specified, or around the run's folder."""
        return (project or Path(os.path.abspath(run)).parent.parent).absolute()  # the folder itself may be a link

    def repeat(self, run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
        """Creates a project with the same code and one run, with the configuration that the run was exported with."""
        config = stored_config(_component_config(run))
        source = str(config.get("src_code_path") or ".")
        if not (code / source).resolve().is_relative_to(code.resolve()):
            raise NotRepeatable(f"is outside the project {str(code)!r}", key="src_code_path", received=source)
        if not (code / source).is_dir():
            raise NotRepeatable("its code is missing", key=str(code / source))
        copy_component_project(code, os.path.relpath((code / source).resolve(), code.resolve()), into)
        name = run.resolve().name  # it may be called "."
        folder = into / "runs" / name
        folder.mkdir(parents=True)
        storage.write_text(folder / "config.yaml", dialect.dump(config))
        words = ["run", name, f"--project-root={into}", f"--backend={original.record['backend']}"]
        return Repetition(words, into, folder / COMPONENTS.training, {})


def _component_config(run: Path) -> Path:
    exported = export_config(run)
    if exported is not None:
        return exported
    files = sorted(run.glob("*.yaml"))
    if len(files) != 1:
        raise NotRepeatable(f"its configuration is missing: {len(files)} *.yaml files, and no export", key=str(run))
    return files[0]


# -- a copy of the project ---------------------------------------------------------------------------------------------


def copy_component_project(root: Path, source: str, into: Path) -> None:
    """Copies the code of a project of components, and links everything else."""
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
    """Copies a project of flows; its `config/` gets the values of the run, not the current ones.

    Args:
      root: The folder of the project.
      into: The folder of the copy.
      settings: The resolved configuration of the task: `task`, `parameters`, `catalog`, `optimizer`.
    """
    shutil.copytree(root, into, ignore=_ignored(root, into, "config", "data"), symlinks=True)
    # Files are removed and written below: none of them may be a link to the original.
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
    """Returns a filter for `copytree`: skips some folders of the project, virtual environments, and the copy itself."""
    never, first, made = shutil.ignore_patterns(*_NEVER), shutil.ignore_patterns(*_NOT_COPIED, *others), into.resolve()

    def ignore(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder, name) for name in names}
        skipped = {name for name, path in paths.items() if path.resolve() == made or (path / "pyvenv.cfg").is_file()}
        return {*never(folder, names), *(first(folder, names) if Path(folder) == root else ()), *skipped}

    return ignore


def _copy_whole(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore_dangling_symlinks=True)
    else:
        target.mkdir(parents=True)


def _link_each(source: Path, target: Path) -> None:
    """Links the entries of a folder, so that files added by a task do not reach the original."""
    target.mkdir()
    for entry in source.iterdir():
        os.symlink(entry.resolve(), target / entry.name, target_is_directory=entry.is_dir())


def _write_config(root: Path, config: Path, settings: dict[str, Any]) -> None:
    has_optimizer = any((folder / "optimizer.yaml").is_file() for folder in (config, config / "local"))
    for name in _CONFIG:
        for folder in (config, config / "local"):
            (folder / name).unlink(missing_ok=True)
    catalog = _with_absolute_paths(settings["catalog"], root)
    values = {"parameters.yaml": {settings["task"]: settings["parameters"]}, "catalog.yaml": catalog}
    if settings.get("experiment"):
        values["parameters.yaml"] = {"experiment": settings["experiment"], **values["parameters.yaml"]}
    values |= {"optimizer.yaml": settings["optimizer"]} if has_optimizer else {}
    for name, tree in values.items():
        storage.write_text(config / name, dialect.dump(tree))


def _with_absolute_paths(catalog: Any, root: Path) -> Any:
    """Returns a catalog whose relative paths to files outside the project are absolute, for a copy of it."""
    if not isinstance(catalog, dict):
        return catalog
    found = {name: _with_absolute_paths(entry, root) for name, entry in catalog.items()}
    path = found.get("filepath")
    if isinstance(path, str) and os.path.normpath(path).split(os.sep)[0] == os.pardir:
        found["filepath"] = os.path.normpath(root / path)
    return found


register_repeatable(FlowRuns())
register_repeatable(ComponentRuns())
