"""The weights of a model alone, as checkpoints that other runs can start from.

A folder holds one directory per step, in the form of a run's own checkpoints: the variables of the model under the keys
they have there (`model/…`), a JSON document, and a manifest with a digest of every file. Each is written under another
name and renamed, so a directory whose name is a number is complete.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everstep import storage
from everstep.checkpoint import arrays
from everstep.checkpoint.checkpointer import SaveError
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.task.optim.ema import find_average
from everstep.types import State

logger = logging.getLogger(__name__)

_ALL = Retention(newest=1 << 30)  # what goes is decided here


class NotANumberError(SaveError):
    """Weights that nobody can begin with: some of them are NaN."""


class WeightsFolder:
    """Keeps the weights of some steps.

    Args:
      directory: The folder; made by the first `write`.
    """

    def __init__(self, directory: storage.PathLike) -> None:
        self.directory = Path(directory).absolute()
        self._controller: Any = None

    def join(self, controller: Any) -> None:
        """Says whose run writes checkpoints meanwhile: Orbax cannot write two things at once in one process."""
        self._controller = controller

    def write(self, step: int, weights: State, meta: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Writes the weights of a step, in place of those that are there; durable when it returns.

        Raises:
          SaveError: The disk did not take them; what was there is still there.
          NotANumberError: They have NaN in them. An infinity may be meant, as in a mask; this never is.
        """
        bad = [key for key, array in weights.items() if _has_nan(array)]
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise NotANumberError(f"{bad[0]}{more} is NaN at step {step}; what was there is still there")
        self._settle()
        with contextlib.closing(self._checkpoints()) as checkpoints:
            checkpoints.save(step, weights, {"step": step, **meta}, metrics, replace=True)
            checkpoints.wait()

    def steps(self) -> list[int]:
        """Returns the steps that are there."""
        with contextlib.closing(self._checkpoints()) as checkpoints:
            return checkpoints.steps()

    def meta(self, step: int) -> dict[str, Any]:
        """Returns the document that was written with a step; empty if it cannot be read."""
        for name in (f"{step}", f"{step}.replaced"):
            with contextlib.suppress(Exception):  # of Orbax, whatever it finds
                return arrays.read_meta(self.directory / name)
        return {}

    def keep(self, steps: Collection[int]) -> None:
        """Removes all other steps, and what a killed process left half done."""
        for entry in list(self.directory.iterdir()) if self.directory.is_dir() else ():
            replaced = entry.name.endswith(".replaced") and entry.with_suffix("").exists()
            other = entry.name.isdecimal() and int(entry.name) not in steps
            if replaced or other or storage.is_temporary(entry):
                storage.remove_directory(entry)

    def _settle(self) -> None:
        """Waits for the checkpoint that is being written, if there is one."""
        if self._controller is None:
            return
        try:
            self._controller.checkpointer.wait()
        except SaveError as error:
            if self._controller.saver.failure == "stop":
                raise
            logger.error("%s; training continues", error)

    def _checkpoints(self) -> OrbaxCheckpointer:
        return OrbaxCheckpointer(self.directory, _ALL, repair=False)


def attempt(write: Callable[[], None], what: str, failure: Literal["stop", "continue"]) -> bool:
    """Writes weights; returns whether they are written.

    Those that are not a number are only told of: what becomes of such a run, whoever judges its state decides.

    Args:
      write: Does it.
      what: What could not be written, if it could not: `the best weights`.
      failure: What to do where the disk does not take them: `stop`, or `continue` with those there are.

    Raises:
      SaveError: The disk did not take them, and that is to stop the run.
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
    """Returns the variables of the model by key; averages in place of those that the optimizer averages."""
    engine, average = trainer.engine, find_average(trainer.optimizer)
    state = engine.state()
    keys = {id(variable): key for key, variable in engine.variables.items()}
    averages = {keys[id(variable)]: keys[id(mean)] for variable, mean in (average.pairs() if average else ())}
    own = {key: value for key, value in state.items() if key.startswith("model/")}
    return {key: state[averages.get(key, key)].astype(value.dtype) for key, value in own.items()}
