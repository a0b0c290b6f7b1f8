"""One batch of everything, by the very path of a long run: train, evaluate, save, restore, export.

Two attempts in one directory. The first trains a step, evaluates and saves; the second starts anew, goes on from what
was saved, as a run that was killed does, and exports.
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everstep.errors import TrainingError
from everstep.experiment import run_experiment
from everstep.experiment_config import ExperimentConfig, Mode
from everstep.launch.tuner.stages import Stages
from everstep.loop.creation import create_trainer
from everstep.loop.hooks import Hook
from everstep.loop.trainer import Trainer
from everstep.run.signals import Interrupted
from everstep.storage import is_temporary
from everstep.task.task import Task
from everstep.types import State


def dev_run(
    params: ExperimentConfig,
    make_task: Callable[[ExperimentConfig], Task],
    mode: str,
    directory: Path,
    stages: Stages,
    export: bool = True,
) -> None:
    """Goes through all that a run does, with one batch each, and tells of every stage.

    Args:
      params: The experiment's configuration, as for the long run.
      make_task: Makes its task; called once for each attempt.
      mode: One that trains.
      directory: An empty directory, to be thrown away.
      stages: Whom to tell.
      export: Whether the long run exports.

    Raises:
      UsageError: The request cannot be carried out; names the stage.
      TrainingError: A stage failed, or what was restored is not what was saved; names the stage.
    """
    small, mode = one_batch(params), Mode(mode)
    saved: dict[str, State] = {}
    with stages.followed():
        stages.begin("build")
        first = _First(stages, saved, mode is not Mode.TRAIN)
        _attempt(small, make_task(small), directory, mode, first, export=False)
        if mode is Mode.TRAIN:
            stages.left_out("evaluate", "--mode train")
        stages.begin("restore")
        task = make_task(small)
        emptied = functools.partial(_emptied, task=task)
        _attempt(small, task, directory, Mode.TRAIN, _Second(stages, saved, export), export, trainer=emptied)
        if export:
            stages.end(note=", ".join(_exported(directory)))


def one_batch(params: ExperimentConfig) -> ExperimentConfig:
    """Returns the configuration with one step, one batch to evaluate, and no tracker beyond this machine."""
    steps = dict.fromkeys(("train_steps", "steps_per_loop", "checkpoint_interval", "validation_interval"), 1)
    limit = {"limit_batches": 1}
    batches = min(params.trainer.validation_steps, 1)  # of several tasks, -1 is one of each
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
        interrupted.saved = None  # it goes with the directory
        raise


class _First(Hook):
    """Says what is about to be done, and keeps the state that was saved."""

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


class _Second(Hook):
    """Compares what was restored with what was saved, bit for bit."""

    def __init__(self, stages: Stages, saved: dict[str, State], export: bool) -> None:
        self._stages, self._saved, self._export = stages, saved, export

    def on_restore(self, step: int | None) -> None:
        _require_same(self._saved["state"], self.controller.trainer.engine.state())

    def on_exit(self, error: BaseException | None) -> None:
        if error is None and self._export:
            self._stages.begin("export")
        elif error is None:
            self._stages.left_out("export", "--no-export")


def _emptied(params: ExperimentConfig, task: Task) -> Trainer:
    """Returns a trainer whose variables hold nothing: what is right after a restore has come from the disk."""
    trainer = create_trainer(params, task, train=True, evaluate=False)
    zeros = {key: np.zeros_like(value) for key, value in trainer.engine.state().items()}
    trainer.engine.load(zeros)
    return trainer


def _exported(directory: Path) -> list[str]:
    """Returns in which forms the model was exported; a form that it cannot have is no failure, but all of them are."""
    folder = directory / "export"
    names = sorted(path.name for path in folder.iterdir() if not is_temporary(path)) if folder.is_dir() else []
    if not names:
        raise TrainingError("the model can be exported in no form; the warnings above say why")
    return names


def _require_same(saved: State, restored: State) -> None:
    differing = [key for key, value in saved.items() if value.tobytes() != restored[key].tobytes()]
    if differing:
        raise TrainingError(
            f"{len(differing)} of {len(saved)} variables have other bits than those that were saved, {differing[0]} "
            "among them"
        )
