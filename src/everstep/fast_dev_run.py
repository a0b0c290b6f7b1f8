"""One batch of everything, with the code of a long run: train, evaluate, save, restore, export.

Two attempts in one directory. The first trains a step, evaluates and saves; the second resumes from the checkpoint, as
after a kill, and exports.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everstep.errors import TrainingError, UsageError
from everstep.experiment import run_experiment
from everstep.experiment_config import ExperimentConfig, Mode
from everstep.loop import Hook, Trainer, create_trainer
from everstep.run import Interrupted
from everstep.storage import is_temporary
from everstep.task import Task
from everstep.types import State


class Stages:
    """Reports stages, one line each, when they end; a stage lasts until the next one begins.

        stages = Stages(print)
        with stages.reported():
            stages.begin("train")
            …                        # train       ok            1.2 s

    Args:
      write: Called with each line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._name, self._began = "", 0.0

    def begin(self, name: str) -> None:
        """Ends the current stage, and begins another."""
        self.end()
        self._name, self._began = name, time.perf_counter()

    def end(self, result: str = "ok", note: str = "") -> None:
        """Ends the current stage, if there is one, with a note on its result."""
        if self._name:
            seconds = time.perf_counter() - self._began
            self._write(f"{self._name:<10}  {result:<8}  {seconds:>6.1f} s  {note}".rstrip())
        self._name = ""

    def skip(self, name: str, reason: str) -> None:
        """Ends the current stage, and reports a skipped one with the reason."""
        self.end()
        self._write(f"{name:<10}  {'skipped':<8}            {reason}")

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Ends the last stage with the block, and adds the stage to errors."""
        try:
            yield
        except BaseException as error:
            failed = self._name
            self.end("failed" if isinstance(error, Exception) else "ended")
            if not isinstance(error, UsageError | TrainingError):
                raise
            raise type(error)(f"{failed} failed: {error}") from error
        self.end()


def dev_run(
    params: ExperimentConfig,
    make_task: Callable[[ExperimentConfig], Task],
    mode: str,
    directory: Path,
    stages: Stages,
    export: bool = True,
) -> None:
    """Runs every stage of a run with one batch, and reports each.

    Args:
      params: The experiment's configuration, as for the long run.
      make_task: Creates the experiment's task; called once for each attempt.
      mode: A mode that trains.
      directory: An empty directory; the caller removes it.
      stages: Reports the stages.
      export: Whether the long run exports.

    Raises:
      UsageError: The request cannot be carried out; names the stage.
      TrainingError: A stage failed, or what was restored is not what was saved; names the stage.
    """
    small, mode = one_batch(params), Mode(mode)
    saved: dict[str, State] = {}
    with stages.reported():
        stages.begin("build")
        first = _SavingHook(stages, saved, mode is not Mode.TRAIN)
        _attempt(small, make_task(small), directory, mode, first, export=False)
        if mode is Mode.TRAIN:
            stages.skip("evaluate", "--mode train")
        stages.begin("restore")
        task = make_task(small)
        second = _RestoringHook(stages, saved, export)
        zeroed = functools.partial(_zeroed_trainer, task=task)
        _attempt(small, task, directory, Mode.TRAIN, second, export, trainer=zeroed)
        if export:
            stages.end(note=", ".join(_exported(directory)))


def one_batch(params: ExperimentConfig) -> ExperimentConfig:
    """Returns the configuration with one step, one batch to evaluate, and no tracker beyond this machine."""
    steps = dict.fromkeys(("train_steps", "steps_per_loop", "checkpoint_interval", "validation_interval"), 1)
    limit = {"limit_batches": 1}
    batches = min(params.trainer.validation_steps, 1)  # -1 is one batch of each of several tasks
    new = params.replace(
        task={"train_data": limit, "validation_data": limit},
        trainer={
            **steps,
            "summary_interval": None,
            "validation_steps": batches,
            "overfit_batches": None,
            "profile": "",
            "sanity_validation_steps": 0,
        },
    )
    new.trainer.tracking = type(new.trainer.tracking)()
    return new


def _attempt(
    params: ExperimentConfig, task: Task, directory: Path, mode: Mode, hook: Hook, export: bool, **settings: Any
) -> None:
    try:
        run_experiment(task, params, directory, mode, hooks=[hook], export=export, verbose=False, **settings)
    except Interrupted as interrupted:
        interrupted.saved = None  # the directory is removed
        raise


class _SavingHook(Hook):
    """Reports the stages of the first attempt, and keeps the state that was saved."""

    def __init__(self, stages: Stages, saved: dict[str, State], evaluates: bool) -> None:
        self._stages, self._saved, self._evaluates = stages, saved, evaluates

    def on_window_begin(self, step: int) -> None:
        self._stages.begin("train")

    def on_window_end(self, step: int, logs: Mapping[str, Any]) -> None:
        self.controller.trainer.engine.wait()
        if not self._evaluates:
            self._stages.begin("save")

    def on_evaluation_begin(self, step: int, num_steps: int) -> None:
        self._stages.begin("evaluate")

    def on_evaluation_end(self, step: int, logs: dict[str, Any]) -> None:
        self._stages.begin("save")

    def on_save(self, step: int) -> None:
        self.controller.checkpointer.wait()
        self._saved["state"] = self.controller.trainer.engine.state()


class _RestoringHook(Hook):
    """Compares the restored state with the saved one, bit for bit, and reports the export."""

    def __init__(self, stages: Stages, saved: dict[str, State], export: bool) -> None:
        self._stages, self._saved, self._export = stages, saved, export

    def on_restore(self, step: int | None) -> None:
        saved, restored = self._saved["state"], self.controller.trainer.engine.state()
        differing = [key for key, value in saved.items() if value.tobytes() != restored[key].tobytes()]
        if differing:
            raise TrainingError(
                f"{len(differing)} of {len(saved)} variables have other bits than those that were saved, among them "
                f"{differing[0]}"
            )

    def on_exit(self, error: BaseException | None) -> None:
        if error is None and self._export:
            self._stages.begin("export")
        elif error is None:
            self._stages.skip("export", "--no-export")


def _zeroed_trainer(params: ExperimentConfig, task: Task) -> Trainer:
    """Returns a trainer whose variables are zero: after a restore, every correct value comes from the disk."""
    trainer = create_trainer(params, task, train=True, evaluate=False)
    zeros = {key: np.zeros_like(value) for key, value in trainer.engine.state().items()}
    trainer.engine.load(zeros)
    return trainer


def _exported(directory: Path) -> list[str]:
    """Returns the names of the exported files; a format that a model cannot have is no failure, unless none is left."""
    folder = directory / "export"
    names = sorted(path.name for path in folder.iterdir() if not is_temporary(path)) if folder.is_dir() else []
    if not names:
        raise TrainingError("the model cannot be exported in any format", remedy="see the warnings above")
    return names
