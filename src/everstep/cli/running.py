"""What commands that run something share: the backend, running an experiment, SIGTERM, restarts."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from everstep import redaction, storage
from everstep.checkpoint.remote.run_copies import working_copy
from everstep.cli.output import quiet
from everstep.cli.request import Resolved
from everstep.config import get_task
from everstep.config.gin.bindings import operative_config
from everstep.data.tf_data import load_tensorflow
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.experiment_config import Mode
from everstep.run.checkpoint_selection import Chosen
from everstep.run.resume_checks import check_keys
from everstep.run.signals import Interrupted
from everstep.types import Logs


def run(
    resolved: Resolved,
    mode: str,
    directory: Path | str,
    export: bool = True,
    allow_change: Sequence[str] = (),
    checkpoint: Chosen | None = None,
) -> Logs:
    """Creates the task and runs it, in a directory or at a URL; returns the last logs.

    Args:
      resolved: The experiment.
      mode: What to do.
      directory: The run directory.
      export: Whether to export what was trained.
      allow_change: Keys that may change although they alter what the run computes.
      checkpoint: What to evaluate in place of the newest checkpoint; then nothing in the run changes.

    Raises:
      UsageError: The request cannot be carried out; nothing is left behind.
      TrainingError: The run started and failed.
    """
    Mode(mode)
    with working_copy(directory, "train" in mode, follow=mode == "continuous_eval") as local:
        return _run(resolved, mode, Path(local), export, allow_change, checkpoint)


def _run(
    resolved: Resolved,
    mode: str,
    directory: Path,
    export: bool,
    allow_change: Sequence[str],
    checkpoint: Chosen | None,
) -> Logs:
    params = resolved.params
    check_keys(directory, params, allow_change)
    with quiet():
        from everstep.experiment import EntryPoint, run_experiment

        load_backend(params.runtime.seed)
    task = get_task(params.task, logging_dir=str(directory))
    try:
        with _at_checkpoint(checkpoint) as settings:
            _, logs = run_experiment(
                task,
                params,
                directory,
                mode,
                experiment=resolved.experiment,
                export=export,
                allow_change=allow_change,
                entry_point=EntryPoint(header=resolved.header()),
                **settings,
            )
    finally:
        if "train" in mode and directory.is_dir():
            _save_gin(directory)
    return {redaction.text(name): value for name, value in logs.items()}


@contextlib.contextmanager
def _at_checkpoint(checkpoint: Chosen | None) -> Iterator[dict[str, Any]]:
    """Yields arguments of `run_experiment` that evaluate this checkpoint and leave the run unchanged."""
    if checkpoint is None:
        yield {}
        return
    from everstep.run.averaged_checkpoint import as_checkpoint

    with as_checkpoint(checkpoint) as path:
        yield {"checkpoint": path, "save_summary": False}


def _save_gin(directory: Path) -> None:
    """Writes what gin configurables were called with, which is known only after the run."""
    text = operative_config()
    if text is not None:
        with contextlib.suppress(OSError):  # a full disk was reported; how the run ended counts
            storage.write_text(directory / "operative_config.gin", redaction.text(text))


def choose_backend(name: str | None) -> str:
    """Selects the backend, before Keras or anything of the project is imported; returns its name.

    Raises:
      UsageError: It is unknown or not installed.
    """
    return backend.select(name, "--backend")


def load_backend(seed: int | None = None) -> None:
    """Loads Keras with the backend that was selected, and initialises its devices.

    Import what needs Keras first: the seed, if given, is set last, before the first object of the user is created.
    """
    from everstep.engine.devices import devices

    if seed is not None:
        backend.prepare(seed)
    devices()


def load_project_backend() -> None:
    """Loads what a run of a project needs: Keras with its devices, and TensorFlow for exports."""
    load_backend()
    with contextlib.suppress(UsageError):  # an estimator can do without
        load_tensorflow("exporting a SavedModel")


def without_restarts(words: Sequence[str]) -> list[str]:
    """Returns this command line as the supervisor starts it: of an option given twice, the last counts."""
    return repeated_command(words, "--max-restarts=0")


def repeated_command(words: Sequence[str], option: str) -> list[str]:
    """Returns the command that runs this command line in a new process, with one more option."""
    end = words.index("--") if "--" in words else len(words)
    return [sys.executable, "-m", "everstep", *words[:end], option, *words[end:]]


@contextlib.contextmanager
def exit_on_sigterm(saved_step: Callable[[], int | None]) -> Iterator[None]:
    """Raises `Interrupted` on SIGTERM inside the block, so that half-written files are removed.

    For a run that starts, exports or evaluates. While it trains, the loop handles signals itself, and saves first.
    Python handles signals in the main thread only: in any other one the block changes nothing.

    Args:
      saved_step: Returns the step from which the same command resumes; None if it starts from the beginning.

    Raises:
      Interrupted: SIGTERM was received; the exit code is 143.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except Interrupted as interrupted:
        interrupted.saved = saved_step() if interrupted.saved is None else interrupted.saved
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if former is None else former)


def _interrupt(number: int, frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleaning up
    raise Interrupted(signal.Signals(number).name, 128 + number)
