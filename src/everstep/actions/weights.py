"""The weights of a model alone, as checkpoints that other runs can start from.

A folder holds one directory per step, in the form of a run's own checkpoints: the variables of the model under the keys
they have there (`model/…`), a JSON document, and a manifest with a digest of every file. Each is written under another
name and renamed, so a directory whose name is a number is complete.
"""

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import arrays
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.optim.ema import find_average
from everstep.types import State

_ALL = Retention(newest=1 << 30)  # what goes is decided here


class WeightsFolder:
    """Keeps the weights of some steps.

    Args:
      directory: The folder; made by the first `write`.
    """

    def __init__(self, directory: storage.PathLike) -> None:
        self.directory = Path(directory).absolute()

    def write(self, step: int, weights: State, meta: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Writes the weights of a step, in place of those that are there; durable when it returns.

        Raises:
          SaveError: The disk did not take them; what was there is still there.
        """
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

    def _checkpoints(self) -> OrbaxCheckpointer:
        return OrbaxCheckpointer(self.directory, _ALL, repair=False)


def model_weights(trainer: Any) -> State:
    """Returns the variables of the model by key; averages in place of those that the optimizer averages."""
    engine, average = trainer.engine, find_average(trainer.optimizer)
    state = engine.state()
    keys = {id(variable): key for key, variable in engine.variables.items()}
    averages = {keys[id(variable)]: keys[id(mean)] for variable, mean in (average.pairs() if average else ())}
    own = {key: value for key, value in state.items() if key.startswith("model/")}
    return {key: state[averages.get(key, key)].astype(value.dtype) for key, value in own.items()}
