"""Copies of the model on the way, for runs that know nothing of stages: `task.init_checkpoint=RUN/exported_ckpts`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.loop.actions.weights import WeightsFolder, attempt, model_weights
from everstep.loop.config import ProgressiveTrainerConfig

FOLDER = "exported_ckpts"


class ExportedCopies:
    """Writes the weights of the model alone when they are due, averaged where the optimizer averages them.

    They are due at the end of the first loop at or after each multiple of the interval, and when training ends, also
    before its time. So it is called after each loop and after each evaluation, as the last of all: one of the others
    may just have ended training.

    Args:
      trainer: Has the model, the `stage`, and the task with its stages.
      model_dir: The run directory.
      config: The trainer's section, in steps.
    """

    def __init__(self, trainer: Any, model_dir: storage.PathLike, config: ProgressiveTrainerConfig) -> None:
        self._trainer, self._config = trainer, config
        self._folder = WeightsFolder(Path(model_dir) / FOLDER)
        own = config.export_checkpoint_interval
        self._interval = int(config.checkpoint_interval if own is None else own)
        self._max_to_keep = config.max_to_keep if config.export_max_to_keep is None else config.export_max_to_keep
        self._controller: Any = None
        self._checked = 0  # the last step at which it was called
        self._written = -1

    def set_controller(self, controller: Any) -> None:
        """Receives the loop that ends training, and writes checkpoints meanwhile; `run_experiment` calls it."""
        self._controller = controller
        self._folder.join(controller)

    def __call__(self, logs: Mapping[str, Any]) -> None:
        """Writes a copy, if one is due at the step that is reached."""
        step = self._trainer.global_step
        passed = self._interval > 0 and step // self._interval > self._checked // self._interval
        self._checked = step
        if step != self._written and ((passed and self._is_wanted()) or self._is_over(step)):
            attempt(lambda: self._write(step), f"the weights in {FOLDER}", self._config.save_failure)

    def get_state(self) -> dict[str, Any]:
        """Returns what a run has to remember: which multiples of the interval are behind it."""
        return {"asked": self._checked}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `get_state` returned; a copy of a step that comes again is written again."""
        self._checked, self._written = state["asked"], -1

    def _is_wanted(self) -> bool:
        last = self._trainer.stage == self._trainer.task.num_stages() - 1
        return last or not self._config.export_only_final_stage_ckpt

    def _is_over(self, step: int) -> bool:
        end = self._config.train_steps
        return (end is not None and step >= end) or bool(self._controller and self._controller.stopped)

    def _write(self, step: int) -> None:
        self._folder.write(step, model_weights(self._trainer), {"stage": self._trainer.stage}, {})
        self._written = step
        # Later steps are those of an attempt that was killed, or went back; they come again.
        self._folder.keep([other for other in self._folder.steps() if other <= step][-self._max_to_keep :])


def maybe_create_exported_copies(config: Any, trainer: Any, model_dir: storage.PathLike) -> ExportedCopies | None:
    """Returns what writes the copies of a run in stages; None where they are not asked for, or there are no stages."""
    wanted = isinstance(config, ProgressiveTrainerConfig) and config.export_checkpoint
    return ExportedCopies(trainer, model_dir, config) if wanted and hasattr(trainer, "stage") else None
