"""Trains a fork: the command of the parent again, in the directory of the fork, with what the user wants changed.

The fork is prepared first, and the command then resumes it as it would resume the parent. If the command refuses that,
nothing of the fork is left.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.forks.forking import fork
from everstep.launch import Child, SignalForwarding
from everstep.reproduce import ProgramRuns, examine, stored_config
from everstep.run import PROGRAM, TRAINED_BY, Record, Redirection, read


def train_fork(
    run: storage.PathLike,
    at: int,
    model_dir: storage.PathLike | None = None,
    changes: Sequence[str] = (),
    allow_change: Sequence[str] = (),
    command: Sequence[str] = (),
) -> tuple[Path, int]:
    """Forks a run, and trains the fork in a process of its own.

    Args:
      run: The run directory.
      at: The step of one of its checkpoints.
      model_dir: The directory of the fork; by default beside the run, `RUN-from-STEP`.
      changes: Values of an experiment's configuration, `KEY=VALUE`.
      allow_change: Further keys that the fork may change; those of `changes` may.
      command: A program to start in place of the one in the record.

    Returns:
      The directory, and the exit code of the process.

    Raises:
      UsageError: The run cannot be forked there, or the record does not say how it was started.
    """
    record, parent = read(run), Path(run)
    words = list(command) or _recorded_command(parent, record, changes)
    into = fork(run, at, _free_place(parent, at) if model_dir is None else model_dir)
    environment = {**os.environ}
    if not command and not _is_program(record, parent):
        keys = [*(change.lstrip("+~").partition("=")[0] for change in changes), *allow_change]
        words += [f"--config-file={into / 'config.yaml'}", f"--model-dir={into}", *changes]
        words += [f"--allow-change={key}" for key in keys]
    else:
        number = int((record.get(PROGRAM) or {}).get("run", 1))
        redirected = Redirection(str(into.absolute()), number, allow_change=tuple(allow_change))
        environment |= {**redirected.variables(), "KERAS_BACKEND": str(record["backend"])}
    try:
        with SignalForwarding() as signals:
            child = Child(words, environment)
            signals.attach(child)
            code = child.wait().exit_code
    finally:
        was_trained = bool(read(into)["attempts"])
        if not was_trained:  # it was refused, or could not be started
            storage.remove_directory(into)
    if not code and not was_trained:
        raise UsageError(
            "has trained nothing in the directory of the fork",
            key="COMMAND",
            received=" ".join(words),
            remedy="start the script that calls everstep.fit or run_experiment; everstep train needs no command here",
        )
    return into, code


def _recorded_command(parent: Path, record: Record, changes: Sequence[str]) -> list[str]:
    """Returns the command that has started a run, without its directory.

    A run may come from elsewhere: what it names is started only as `everstep reproduce` starts it, from this folder.

    Raises:
      UsageError: It is not in the record, or is not here; or there are changes, and a program decides the values.
    """
    program = record.get(PROGRAM) or {}
    if not _is_program(record, parent):
        if _is_experiment(parent):
            return [sys.executable, "-m", "everstep", "train", f"--mode={record.get('mode') or 'train_and_eval'}"]
        raise UsageError(
            "was not started by everstep train or a script",
            key=str(parent),
            remedy="create the fork in Python, everstep.fork(RUN, at=STEP, model_dir=DIR), and train it there",
        )
    if changes:
        raise UsageError(
            f"is a run of {program['script']}, which decides its values",
            key=str(parent),
            received=changes[0],
            remedy=f"change them in its call: everstep fork {parent} --at STEP -- python {program['script']} …",
        )
    if not Path(program["script"]).is_file():
        raise UsageError(
            f"was trained by {program['script']!r}, which is not here",
            key=str(parent),
            remedy=f"call this in {program['directory']}, or add the command: -- python {program['script']}",
        )
    original, programs = examine(parent), ProgramRuns()
    again = programs.repeat(parent, original, parent, programs.code_folder(parent, original, None))
    return [sys.executable, *again.program, *again.words]


def _is_program(record: Record, parent: Path) -> bool:
    program = record.get(PROGRAM) or {}
    return bool(program.get("script")) and (bool(program.get(TRAINED_BY)) or not _is_experiment(parent))


def _is_experiment(parent: Path) -> bool:
    return bool(stored_config(parent / "config.yaml").get("experiment"))


def _free_place(parent: Path, at: int) -> Path:
    """Returns a directory beside the run that does not exist."""
    places = (parent.with_name(f"{parent.name}-from-{at}{more}") for more in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(place for place in places if not place.exists())
