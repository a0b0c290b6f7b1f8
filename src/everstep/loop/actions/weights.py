"""The weights of a model alone, as checkpoints that other runs can start from: averages, and copies of stages.

A folder contains one directory per step, in the format of a run's own checkpoints: the variables of the model under the
same keys (`model/…`), a JSON document, and a manifest with a digest of every file. Each is written under another name
and renamed, so a directory whose name is a number is complete.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everstep import storage
from everstep.checkpoint import Base, OrbaxCheckpointer, Retention, SaveError, arrays
from everstep.errors import UsageError
from everstep.loop.actions.metrics import scalars
from everstep.loop.config import ProgressiveTrainerConfig
from everstep.task.optim import find_average
from everstep.types import State

logger = logging.getLogger(__name__)

_ALL = Retention(newest=1 << 30)  # `WeightsFolder.keep` decides what is removed

EXPORTED = "exported_ckpts"
"""The folder of exported copies in a run directory: `task.init_checkpoint=RUN/exported_ckpts`."""


class NotANumberError(SaveError):
    """Some weights are NaN, so that no run can start from them."""


class WeightsFolder:
    """A folder with the weights of some steps.

    Args:
      directory: The folder; created by the first `write`.
    """

    def __init__(self, directory: storage.PathLike) -> None:
        self.directory = Path(directory).absolute()
        self._controller: Any = None

    def join(self, controller: Any) -> None:
        """Sets the loop, whose checkpoints have to be written first: Orbax cannot write two at once in one process."""
        self._controller = controller

    def write(self, step: int, weights: State, meta: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Writes the weights of a step, replacing existing ones; they are durable when it returns.

        Frozen weights are not written if the run keeps them once, in `base/` beside the folder, or the task provides
        them.

        Raises:
          SaveError: They cannot be written; existing ones are kept.
          NotANumberError: Some are NaN. Infinities may be intended, as in a mask.
        """
        bad = [key for key, array in weights.items() if _has_nan(array)]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise NotANumberError(f"{bad[0]}{more} is NaN at step {step}; existing weights are kept")
        self._settle()
        base, frozen = self._base()
        weights = {key: array for key, array in weights.items() if key not in frozen}
        with contextlib.closing(self._checkpoints()) as checkpoints:
            checkpoints.save(step, weights, {"step": step, **meta}, metrics, replace=True, base=base)
            checkpoints.wait()

    def _base(self) -> tuple[Base | None, Collection[str]]:
        """Returns where the frozen weights of the run are, saved if they were not, and their keys."""
        if self._controller is None or self._controller.trainer is None:
            return None, ()
        saver, trainer = self._controller.saver, self._controller.trainer
        if (base := saver.base_of(trainer)) is None:
            return None, ()
        saver.store_base(base, trainer)
        return base, trainer.frozen.keys

    def steps(self) -> list[int]:
        """Returns the steps in the folder."""
        with contextlib.closing(self._checkpoints()) as checkpoints:
            return checkpoints.steps()

    def meta(self, step: int) -> dict[str, Any]:
        """Returns the JSON document of a step; empty if it cannot be read."""
        for name in (f"{step}", f"{step}.replaced"):
            with contextlib.suppress(Exception):  # Orbax raises many kinds of errors
                return arrays.read_meta(self.directory / name)
        return {}

    def keep(self, steps: Collection[int]) -> None:
        """Removes all other steps, and incomplete ones of killed processes."""
        for entry in list(self.directory.iterdir()) if self.directory.is_dir() else ():
            replaced = entry.name.endswith(".replaced") and entry.with_suffix("").exists()
            other = entry.name.isdecimal() and int(entry.name) not in steps
            if replaced or other or storage.is_temporary(entry):
                storage.remove_directory(entry)

    def _settle(self) -> None:
        """Waits for a checkpoint that is being written."""
        if self._controller is not None:
            self._controller.saver.wait()

    def _checkpoints(self) -> OrbaxCheckpointer:
        return OrbaxCheckpointer(self.directory, _ALL, repair=False)


def attempt(write: Callable[[], None], what: str, failure: Literal["stop", "continue"]) -> bool:
    """Writes weights; returns whether that succeeded.

    NaN is only logged: the loop's recovery decides about a run that has diverged.

    Args:
      write: Writes the weights.
      what: The name of the weights for messages, such as `the best weights`.
      failure: What to do if they cannot be written: `stop`, or `continue` with existing ones.

    Raises:
      SaveError: They cannot be written, and `failure` is `stop`.
    """
    try:
        write()
    except (SaveError, OSError) as error:
        if failure == "stop" and not isinstance(error, NotANumberError):
            raise SaveError(f"{what} are not exported: {error}") from error
        logger.error("%s are not exported: %s; training continues", what, error)
        return False
    return True


def _has_nan(array: Any) -> bool:
    array = np.asarray(array)
    return array.dtype.kind not in "biuUS" and bool(np.isnan(array).any())


def model_weights(trainer: Any) -> State:
    """Returns the variables of the model by key, with averages where the optimizer keeps them."""
    engine, average = trainer.engine, find_average(trainer.optimizer)
    state = engine.state()
    keys = {id(variable): key for key, variable in engine.variables.items()}
    averages = {keys[id(variable)]: keys[id(mean)] for variable, mean in (average.pairs() if average else ())}
    own = {key: value for key, value in state.items() if key.startswith("model/")}
    return {key: state[averages.get(key, key)].astype(value.dtype) for key, value in own.items()}


class EMACheckpointing:
    """Writes the averaged weights after each evaluation, `<directory>/<step>/`, if the optimizer keeps an average.

    Args:
      directory: The folder, usually `<model_dir>/ema_checkpoints`.
      trainer: The trainer with the model and the optimizer.
      max_to_keep: How many of the newest ones to keep.
      failure: What to do if they cannot be written: `stop`, or `continue` with existing ones.

    Raises:
      UsageError: The optimizer keeps no average.
    """

    def __init__(
        self,
        directory: storage.PathLike,
        trainer: Any,
        max_to_keep: int = 1,
        failure: Literal["stop", "continue"] = "stop",
    ) -> None:
        if find_average(trainer.optimizer) is None:
            raise UsageError(
                "the optimizer averages no weights",
                key="EMACheckpointing",
                received=type(trainer.optimizer).__name__,
                remedy="set trainer.optimizer_config.ema, or remove the action",
            )
        if max_to_keep < 1:
            raise UsageError("must be at least 1", key="EMACheckpointing.max_to_keep", received=max_to_keep)
        self._folder, self._trainer = WeightsFolder(directory), trainer
        self._max_to_keep, self._failure = max_to_keep, failure

    def set_controller(self, controller: Any) -> None:
        """Called by `run_experiment` with the loop, whose checkpoints have to be written first."""
        self._folder.join(controller)

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Writes the averaged weights of the evaluated step."""
        attempt(lambda: self._write(scalars(output)), "the averaged weights", self._failure)

    def _write(self, metrics: Mapping[str, Any]) -> None:
        step = self._trainer.global_step
        self._folder.write(step, model_weights(self._trainer), {"info": metrics}, metrics)
        # Later steps are those of a killed attempt; they will be repeated.
        self._folder.keep([other for other in self._folder.steps() if other <= step][-self._max_to_keep :])

    def get_state(self) -> dict[str, Any]:
        """Returns nothing: the average itself is part of the optimizer's state."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Has no state."""


class ExportedCopies:
    """Writes copies of the model's weights, averaged if the optimizer averages them, for runs without stages.

    A copy is due at the end of the first loop at or after each multiple of the interval, and when training ends, also
    if it is stopped early. So it is called after each loop and each evaluation, after all other actions, because one of
    them may have stopped training.

    Args:
      trainer: The trainer with the model, the `stage`, and the task with its stages.
      model_dir: The run directory.
      config: The trainer's section, in steps.
    """

    def __init__(self, trainer: Any, model_dir: storage.PathLike, config: ProgressiveTrainerConfig) -> None:
        self._trainer, self._config = trainer, config
        self._folder = WeightsFolder(Path(model_dir) / EXPORTED)
        own = config.export_checkpoint_interval
        self._interval = int(config.checkpoint_interval if own is None else own)
        self._max_to_keep = config.max_to_keep if config.export_max_to_keep is None else config.export_max_to_keep
        self._controller: Any = None
        self._checked = 0  # the step of the last call
        self._written = -1

    def set_controller(self, controller: Any) -> None:
        """Called by `run_experiment` with the loop, which stops training and writes checkpoints."""
        self._controller = controller
        self._folder.join(controller)

    def __call__(self, logs: Mapping[str, Any]) -> None:
        """Writes a copy, if one is due at the current step."""
        step = self._trainer.global_step
        passed = self._interval > 0 and step // self._interval > self._checked // self._interval
        self._checked = step
        if step != self._written and ((passed and self._is_exported_stage()) or self._is_over(step)):
            attempt(lambda: self._write(step), f"the weights in {EXPORTED}", self._config.save_failure)

    def get_state(self) -> dict[str, Any]:
        """Returns the step of the last call: it tells which multiples of the interval have passed."""
        return {"asked": self._checked}  # the key of saved checkpoints

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; copies of repeated steps are written again."""
        self._checked, self._written = state["asked"], -1

    def _is_exported_stage(self) -> bool:
        last = self._trainer.stage == self._trainer.task.num_stages() - 1
        return last or not self._config.export_only_final_stage_ckpt

    def _is_over(self, step: int) -> bool:
        end = self._config.train_steps
        return (end is not None and step >= end) or bool(self._controller and self._controller.stopped)

    def _write(self, step: int) -> None:
        self._folder.write(step, model_weights(self._trainer), {"stage": self._trainer.stage}, {})
        self._written = step
        # Later steps are those of a killed attempt, or were rolled back; they will be repeated.
        self._folder.keep([other for other in self._folder.steps() if other <= step][-self._max_to_keep :])


def maybe_create_exported_copies(config: Any, trainer: Any, model_dir: storage.PathLike) -> ExportedCopies | None:
    """Returns the action that exports copies of a run in stages; None if it is not configured, or there are none."""
    exports = isinstance(config, ProgressiveTrainerConfig) and config.export_checkpoint
    return ExportedCopies(trainer, model_dir, config) if exports and hasattr(trainer, "stage") else None
