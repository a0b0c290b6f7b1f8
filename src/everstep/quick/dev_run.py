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
from everstep.experiment_config import ExperimentConfig
from everstep.loop.controller import Controller
from everstep.loop.windows import Windows
from everstep.quick.stages import Stages
from everstep.run.signals import Interrupted
from everstep.storage import is_temporary
from everstep.task.task import Task
from everstep.types import Logs, State


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
    attempt = functools.partial(_attempt, one_batch(params), make_task, directory)
    saved: dict[str, State] = {}
    with stages.followed():
        stages.begin("build")
        attempt(mode, functools.partial(_First, stages, saved), export=False)
        if mode == "train":
            stages.left_out("evaluate", "--mode train")
        stages.begin("restore")
        attempt("train", functools.partial(_Second, stages, saved, export), export=export)
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
    params: ExperimentConfig,
    make_task: Callable[[ExperimentConfig], Task],
    directory: Path,
    mode: str,
    controller: Callable[..., Controller],
    export: bool,
) -> None:
    try:
        run_experiment(
            None, make_task(params), mode, params, directory, controller_cls=controller, export=export, verbose=False
        )
    except Interrupted as interrupted:
        interrupted.saved = None  # it goes with the directory
        raise


class _First(Controller):
    """Trains, evaluates and saves; says what it is about to do, and keeps what it has saved."""

    def __init__(self, stages: Stages, saved: dict[str, State], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._stages, self._saved = stages, saved

    def evaluate(self, steps: int = -1) -> Logs:
        """Evaluates once."""
        self._stages.begin("evaluate")
        return super().evaluate(steps)

    def _train_window(self, windows: Windows, end: int) -> Mapping[str, float]:
        self._stages.begin("train")
        logs = super()._train_window(windows, end)
        self.trainer.engine.wait()
        return logs

    def _save(self, early: bool) -> None:
        if not early:  # what is saved before an evaluation is saved again behind it
            self._stages.begin("save")
        super()._save(early)
        self.checkpointer.wait()
        self._saved["state"] = self.trainer.engine.state()


class _Second(Controller):
    """Goes on from what was saved, compares it bit for bit, and leaves exporting to those after it."""

    def __init__(self, stages: Stages, saved: dict[str, State], export: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._stages, self._saved, self._export = stages, saved, export

    def restore_checkpoint(self, step: int | None = None) -> int | None:
        """Restores into variables that hold nothing of it: what is right afterwards has come from the disk."""
        engine = self.trainer.engine
        engine.load({key: np.zeros_like(value) for key, value in engine.state().items()})
        found = super().restore_checkpoint(step)
        _require_same(self._saved["state"], engine.state())
        return found

    def train(self, steps: int, checkpoint_at_completion: bool = True) -> Logs:
        """Has nothing left to train."""
        logs = super().train(steps, checkpoint_at_completion)
        if self._export:
            self._stages.begin("export")
        else:
            self._stages.left_out("export", "--no-export")
        return logs


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
