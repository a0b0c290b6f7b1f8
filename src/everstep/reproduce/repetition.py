"""Repeats a run: the command that its record leads to, copies of its project and its code, and the process.

The project stays as it is: code and configuration are copied, with the values that the run had; data is linked, or
copied where a task may write. The code of the record is restored from its commit and the patch that the run has kept.
The length of a run may alter what it computes, so its configuration is never changed to make it shorter: where only
the first steps are compared, the process is stopped after them.
"""

import collections
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.reproduce.evidence import Evidence, stored_config
from everstep.run import export_config, git, last_beat, layout_named, loop_directory, with_settings
from everstep.tracking import SERVERS

_NEVER = (".*", "__pycache__")
_NOT_COPIED = ("runs", "*.db", "mlartifacts", "mlruns")  # of the project's folder itself: code may have such names
_MADE_ANEW = ("model", "report")
_CONFIG = ("parameters.yaml", "catalog.yaml", "optimizer.yaml")

_ERROR = "everstep: error: "
_UNSET = ("MLFLOW_TRACKING_URI", "KERAS_BACKEND", "EVERSTEP_SUBMISSION", "EVERSTEP_SUPERVISOR")
_GONE = re.compile(r"(FileNotFoundError|ModuleNotFoundError|ImportError|NotADirectoryError)\b")
_LAST_LINES = 200
_POLL_SECONDS = 0.1


class NotRepeatable(UsageError):
    """A run cannot be repeated, because something is missing, or it fails."""


class CodeUnavailable(UsageError):
    """The code of a run cannot be restored."""


# -- the command -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Repetition:
    """A command that repeats a run.

    Attributes:
      words: The arguments after `everstep`.
      folder: The working directory of the command.
      result: The run directory that it creates.
      settings: The environment variables of the run that change what libraries compute.
    """

    words: list[str]
    folder: Path
    result: Path
    settings: dict[str, str]


def code_folder(run: Path, original: Evidence, project: Path | None = None) -> Path:
    """Returns the folder with the code of a run.

    Args:
      run: The path of the run, as the user specified it.
      original: What the run has left.
      project: The folder that the user specified, if any.

    Raises:
      UsageError: A user's program trained the run: the record does not contain it.
      NotRepeatable: The folder no longer exists.
    """
    if project is not None and not project.is_dir():
        raise UsageError("there is no such folder", key="--project", received=str(project))
    if original.record.get("flow"):
        return _flow_project(run, original, project)
    if loop_directory(run) != run:
        return (project or Path(os.path.abspath(run)).parent.parent).absolute()  # the folder itself may be a link
    if stored_config(original.directory / "config.yaml").get("experiment"):
        return (project or Path.cwd()).absolute()
    raise UsageError(
        "was trained by a program that is not in its record",
        key=str(run),
        remedy=f"run that again in another directory, then compare: everstep reproduce {run} --with OTHER",
    )


def create_repetition(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
    """Returns the command that repeats a run in a new directory.

    Args:
      run: The path of the run, as the user specified it.
      original: What the run has left.
      into: The directory for the repetition; it must not exist.
      code: The folder of its code: what `code_folder` returned, or a copy of that.

    Raises:
      NotRepeatable: Something of the run is missing.
    """
    settings = original.record["environment"].get("settings")
    how = _flow if original.record.get("flow") else _component if loop_directory(run) != run else _experiment
    found = how(run, original, into, code)
    return dataclasses.replace(found, settings=dict(settings) if isinstance(settings, dict) else {})


def _experiment(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
    stored = original.directory / "config.yaml"
    words = ["train", f"--config-file={stored.absolute()}", f"--model-dir={into}", f"--mode={_mode(original)}"]
    words += ["--no-export", *(f"trainer.tracking.{server}=false" for server in SERVERS)]
    others = original.config.get("trainer", {}).get("tracking", {}).get("others", {})
    words += [f"~trainer.tracking.others.{name}" for name in others]
    return Repetition(words, code, into, {})


def _mode(original: Evidence) -> str:
    """Returns the mode of the run: as recorded, or, for older records, inferred from its numbers."""
    if isinstance(recorded := original.record.get("mode"), str):
        return recorded
    names = set(original.record["metrics"].get("validation", {}))
    names |= {f"validation_{name}" for name in names}
    evaluated = [step for step, row in original.numbers.items() if names & row.keys()]
    if not names:
        return "train"
    interval = original.config.get("trainer", {}).get("validation_interval")
    expected = interval if isinstance(interval, int) else 0
    late = len(evaluated) == 1 and len(original.numbers) > 1 and 0 < expected < evaluated[0]
    return "train_and_post_eval" if late else "train_and_eval"


def _flow(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
    """Copies the project, to whose files the run would write, with the configuration of the run."""
    stored = run / layout_named("flow").settings
    settings = stored_config(stored if stored.is_file() else run / "config.yaml")
    if not {"task", "parameters", "catalog", "optimizer"} <= settings.keys():
        raise NotRepeatable("its configuration is missing", key=str(stored))
    copy = into / "project"
    copy_flow_project(code, copy, settings)
    words = ["flow", str(settings["task"]), f"--project={copy}", f"--model-dir={into / 'run'}"]
    words.append(f"--backend={original.record['backend']}")
    return Repetition(words, copy, into / "run", {})


def _flow_project(run: Path, original: Evidence, project: Path | None) -> Path:
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


def _component(run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
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
    return Repetition(words, into, folder / layout_named("components").training, {})


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


# -- the code of the record --------------------------------------------------------------------------------------------


def restore_code(original: Evidence, code: Path, into: Path) -> Path:
    """Restores the folder `code` as it was when the run was trained, in a new directory; returns its path there.

    Files that git does not have, such as data, are linked. The repository itself is only read.

    Args:
      original: The original run.
      code: The folder as it is now.
      into: The directory for the files of the repository.

    Raises:
      CodeUnavailable: That is not possible; the message tells why.
    """
    commit, top = original.record["code"].get("commit"), _top(code)
    if not commit:
        raise CodeUnavailable("the run was not trained in a git repository")
    if top is None or git(top, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise CodeUnavailable(f"commit {str(commit)[:12]} is in no git repository around {str(code)!r}")
    _check_out(top, str(commit), into)
    if original.record["code"].get("dirty"):
        _patch(original, top, into)
    known, inside = _known(top), code.resolve().relative_to(top)
    if not (into / inside).is_dir() and any(path.is_relative_to(top / inside) for path in known):
        raise CodeUnavailable(
            f"commit {str(commit)[:12]} has no folder {str(inside)!r}: it had another name, or is newer"
        )
    _link(top, into, known, {folder for path in known for folder in path.parents})
    return into / inside


def python_path(code: Path, into: Path) -> str:
    """Returns the PYTHONPATH for the modules of a restored repository, including those of an editable install."""
    top = _top(code)
    if top is None:
        return ""
    inside = [Path(path).resolve() for path in sys.path if path and Path(path).resolve().is_relative_to(top)]
    return os.pathsep.join(str(into / path.relative_to(top)) for path in inside)


def _top(code: Path) -> Path | None:
    found = git(code, "rev-parse", "--show-toplevel") if code.is_dir() else None
    return None if found is None else Path(os.fsdecode(found).removesuffix("\n")).resolve()


def _check_out(top: Path, commit: str, into: Path) -> None:
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="everstep-git-") as folder:
        variables = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        done = git(top, "read-tree", commit, variables=variables)
        if done is not None:
            done = git(top, "checkout-index", "--all", f"--prefix={into}/", variables=variables)
    if done is None:
        raise CodeUnavailable(f"commit {commit[:12]} cannot be checked out")


def _patch(original: Evidence, top: Path, into: Path) -> None:
    path = original.code_changes()
    if path is None:
        raise CodeUnavailable("files had changed since its commit, and the patch is missing or was modified")
    if not path.resolve().is_relative_to(top):  # a patch is code, and a run from elsewhere is not trusted
        raise CodeUnavailable(
            f"the changes since its commit are in {str(path)!r}, outside the project, and are not applied"
        )
    command = ["git", "apply", "--binary", "--whitespace=nowarn", str(path)]
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(into.resolve().parent)}
    done = subprocess.run(command, cwd=into, env=alone, capture_output=True, text=True)
    if done.returncode:
        raise CodeUnavailable(f"the changes since its commit do not apply: {' '.join(done.stderr.split())[:200]}")


def _known(top: Path) -> set[Path]:
    """Returns the current source files: those that the commit does not have did not exist."""
    listed = git(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "*.py") or b""
    return {top / os.fsdecode(name) for name in listed.split(b"\0") if name}


def _link(source: Path, target: Path, left_out: set[Path], folders: set[Path]) -> None:
    """Links missing files, except sources; folders with sources that the commit did not have are created."""
    for entry in source.iterdir():
        there = target / entry.name
        exists = os.path.lexists(there)
        if there.is_dir() and not there.is_symlink() and entry.is_dir():
            _link(entry, there, left_out, folders)
        elif exists or entry.name in (".git", "__pycache__") or entry in left_out:
            continue
        elif entry in folders and not entry.is_symlink():
            there.mkdir()
            _link(entry, there, left_out, folders)
        else:
            there.symlink_to(entry, target_is_directory=entry.is_dir())


# -- the process -------------------------------------------------------------------------------------------------------


def run_repetition(repetition: Repetition, show: bool, until: int | None = None, python_path: str = "") -> None:
    """Runs the command in a process of its own.

    Args:
      repetition: The command.
      show: Whether to print its output.
      until: The step after which to stop it; None to let it finish.
      python_path: The first folders in which Python looks for modules.

    Raises:
      NotRepeatable: The command failed: code or data is missing, or it has an error.
    """
    kept: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    with _started(repetition, python_path) as process, _stopped_after(process, repetition.result, until) as stopped:
        for line in process.stderr or ():
            kept.append(line.rstrip("\n"))
            if show and not line.startswith(_ERROR):  # the error is reported at the end
                print(line, end="", file=sys.stderr)
    if process.returncode and not stopped.is_set():
        raise _failure(process.returncode, [line for line in kept if line.strip()])


def _started(repetition: Repetition, python_path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "everstep", *repetition.words],
        cwd=repetition.folder,
        env=_environment(repetition, python_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _environment(repetition: Repetition, python_path: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if name not in _UNSET}
    paths = [path for path in (python_path, mine.get("PYTHONPATH", "")) if path]
    found = with_settings(mine, repetition.settings)
    return {**found, "PYTHONPATH": os.pathsep.join(paths)} if paths else found


@contextlib.contextmanager
def _stopped_after(process: subprocess.Popen[str], run: Path, until: int | None) -> Iterator[threading.Event]:
    """Inside the block the process is stopped when it is beyond a step, which it has evaluated and saved by then.

    Yields:
      An event that is set when the stop was requested.
    """
    stopped, over = threading.Event(), threading.Event()

    def watch() -> None:
        while until is not None and not over.wait(_POLL_SECONDS):
            beat = last_beat(run)
            if beat is not None and beat[0] > until and process.poll() is None:
                stopped.set()
                process.send_signal(signal.SIGTERM)
                return

    watcher = threading.Thread(target=watch, name="reproduce", daemon=True)
    watcher.start()
    try:
        yield stopped
    finally:
        over.set()
        watcher.join()


def _failure(code: int, lines: list[str]) -> NotRepeatable:
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    reason = errors[-1] if errors else (lines[-1] if lines else f"exit code {code}")
    if code == 2 or _GONE.match(reason):
        return NotRepeatable(reason)
    return NotRepeatable(f"it failed when it was repeated: {reason}")
