"""Copies of the model on the way, for runs that know nothing of stages: `task.init_checkpoint=RUN/exported_ckpts`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.loop.progressive_config import ProgressiveTrainerConfig

FOLDER = "exported_ckpts"


class ExportedCopies:
    """A train action: writes the model's variables, and nothing else of the state, when it is due.

    Args:
      trainer: Has the `engine`, the `stage` and the task with its stages.
      directory: The run directory.
      config: The trainer's section, in steps.
    """

    def __init__(self, trainer: Any, directory: Path, config: ProgressiveTrainerConfig) -> None:
        self._trainer, self._config = trainer, config
        newest = config.export_max_to_keep or config.max_to_keep
        self._copies = OrbaxCheckpointer(directory / FOLDER, Retention(newest))
        interval = config.export_checkpoint_interval or config.checkpoint_interval
        self._interval = int(interval)

    def __call__(self, logs: Mapping[str, Any]) -> None:
        """Writes a copy, if one is due at the step that is reached."""
        step = self._trainer.global_step
        if not self._is_due(step):
            return
        state = {key: array for key, array in self._trainer.engine.state().items() if key.startswith("model/")}
        self._copies.save(step, state, {"step": step, "stage": self._trainer.stage})
        self._copies.wait()

    def _is_due(self, step: int) -> bool:
        if step >= (self._config.train_steps or 0):
            return True
        last = self._trainer.stage == self._trainer.task.num_stages() - 1
        due = self._interval > 0 and step % self._interval == 0
        return due and (last or not self._config.export_only_final_stage_ckpt)


def exported_copies(trainer: Any, directory: Path, config: Any) -> list[ExportedCopies]:
    """Returns the action, if the configuration wants it."""
    wanted = isinstance(config, ProgressiveTrainerConfig) and config.export_checkpoint
    return [ExportedCopies(trainer, directory, config)] if wanted and hasattr(trainer, "stage") else []
