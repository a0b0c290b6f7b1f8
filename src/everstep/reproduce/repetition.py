"""Repeats a run: the command that its record leads to, a copy of its code, and the process.

What trains in another way than `everstep train` registers how its runs are repeated. The code of the record is restored
from its commit and the patch that the run has kept. The length of a run may alter what it computes, so nothing in its
configuration is changed to make it shorter: where only the first steps are compared, the process is stopped after them.
"""

import collections
import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from everstep.entry_points import load_modules, missing_companions
from everstep.errors import UsageError
from everstep.reproduce.evidence import Evidence, stored_config
from everstep.run import PROGRAM, TRAINED_BY, git, last_beat, with_settings
from everstep.tracking import SERVERS

ENTRY_POINTS = "everstep.repetitions"
"""The group of entry points; each names a module that registers kinds of runs."""

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
      program: The arguments of Python before the words: what is run.
      variables: Further environment variables.
    """

    words: list[str]
    folder: Path
    result: Path
    settings: dict[str, str]
    program: tuple[str, ...] = ("-m", "everstep")
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


class RepeatableKind(Protocol):
    """A kind of runs, other than experiments, that a command of its own repeats."""

    def is_of(self, run: Path, original: Evidence) -> bool:
        """Returns whether a run is of this kind."""

    def code_folder(self, run: Path, original: Evidence, project: Path | None) -> Path:
        """Returns the folder with its code; `project` is the one that the user specified, if any."""

    def repeat(self, run: Path, original: Evidence, into: Path, code: Path) -> Repetition:
        """Returns the command that repeats it; `create_repetition` explains the arguments."""


_kinds: list[RepeatableKind] = []


def register_repeatable(kind: RepeatableKind) -> None:
    """Adds a kind of runs, in a module that an entry point of the group `everstep.repetitions` names."""
    _kinds.append(kind)


def _kind_of(run: Path, original: Evidence) -> RepeatableKind | None:
    load_modules(ENTRY_POINTS, "repetitions")
    return next((kind for kind in _kinds if kind.is_of(run, original)), None)


def code_folder(run: Path, original: Evidence, project: Path | None = None) -> Path:
    """Returns the folder with the code of a run.

    Args:
      run: The path of the run, as the user specified it.
      original: What the run has left.
      project: The folder that the user specified, if any.

    Raises:
      UsageError: A user's program trained the run, and the record does not contain it.
      NotRepeatable: The folder no longer exists.
    """
    if project is not None and not project.is_dir():
        raise UsageError("there is no such folder", key="--project", received=str(project))
    if (kind := _kind_of(run, original)) is not None:
        return kind.code_folder(run, original, project)
    program = original.record.get(PROGRAM) or {}
    if stored_config(original.directory / "config.yaml").get("experiment") and not program.get(TRAINED_BY):
        return (project or Path.cwd()).absolute()
    gone = sorted(set(missing_companions(ENTRY_POINTS).values()))
    without = f", or by {', '.join(gone)}, which this installation is without" if gone else ""
    why = program.get("reason")
    raise UsageError(
        f"was trained by a program that is not in its record{f': {why}' if why else ''}{without}",
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
    kind = _kind_of(run, original)
    found = (kind.repeat if kind is not None else _experiment)(run, original, into, code)
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
    commit, top = original.record["code"].get("commit"), repository(code)
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
    top = repository(code)
    if top is None:
        return ""
    inside = [Path(path).resolve() for path in sys.path if path and Path(path).resolve().is_relative_to(top)]
    return os.pathsep.join(str(into / path.relative_to(top)) for path in inside)


def repository(code: Path) -> Path | None:
    """Returns the top of the git repository around a folder; None if there is none."""
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


def run_repetition(
    repetition: Repetition, show: bool, until: int | None = None, python_path: str = "", removed: Path | None = None
) -> None:
    """Runs the command in a process of its own.

    Args:
      repetition: The command.
      show: Whether to print its output.
      until: The step after which to stop it; None to let it finish.
      python_path: The first folders in which Python looks for modules.
      removed: A folder that will not exist afterwards: lines with a path in it are not printed.

    Raises:
      NotRepeatable: The command failed: code or data is missing, or it has an error.
    """
    kept: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    with _started(repetition, python_path) as process, _stopped_after(process, repetition.result, until) as stopped:
        for line in process.stderr or ():
            kept.append(line.rstrip("\n"))
            is_of_removed = removed is not None and str(removed) in line
            if show and not is_of_removed and not line.startswith(_ERROR):  # the error is reported at the end
                print(line, end="", file=sys.stderr)
    if process.returncode and not stopped.is_set():
        raise _failure(process.returncode, [line for line in kept if line.strip()])


def _started(repetition: Repetition, python_path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *repetition.program, *repetition.words],
        cwd=repetition.folder,
        env=_environment(repetition, python_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _environment(repetition: Repetition, python_path: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if name not in _UNSET}
    paths = [path for path in (python_path, mine.get("PYTHONPATH", "")) if path]
    found = {**with_settings(mine, repetition.settings), **repetition.variables}
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
