"""Checkpoints written by Orbax, used directly.

One directory per step: `state/` holds every array under its flat key, `meta/` one JSON document. Orbax writes
under a temporary name and renames at the end, so a directory with a number for a name is complete.
"""

from pathlib import Path
from typing import Any

import numpy as np

from everstep import storage
from everstep.checkpoint.checkpointer import Checkpointer
from everstep.checkpoint.quiet import quiet
from everstep.errors import TrainingError, UsageError
from everstep.types import State

with quiet():
    import orbax.checkpoint as ocp

_UNFINISHED = ".orbax-checkpoint-tmp"


class OrbaxCheckpointer(Checkpointer):
    """Keeps the newest `max_to_keep` states in `directory`, one subdirectory per step.

    Arrays come back as NumPy arrays with the bits, shape and dtype they had: they never pass through JAX,
    which would make int32 of int64. Reading creates nothing.

    Args:
      directory: Usually `<model_dir>/checkpoints`; created by the first save.
      max_to_keep: How many steps to keep, at least 1.
    """

    def __init__(self, directory: storage.PathLike, max_to_keep: int = 5) -> None:
        if max_to_keep < 1:
            raise UsageError(f"max_to_keep must be at least 1, got {max_to_keep}")
        self._directory = Path(directory).absolute()
        self._max_to_keep = max_to_keep
        self._saved_before = False
        with quiet():
            self._orbax = ocp.Checkpointer(_handler())

    def save(self, step: int, state: State, meta: dict[str, Any]) -> None:
        """Saves under `step`, then removes the steps that are too many."""
        if step in self.steps():
            return
        if not self._saved_before:
            self._prepare()
        with quiet():
            self._orbax.save(self._path(step), args=_arguments(state, meta))
        self._prune(step)

    def restore(self, step: int | None = None) -> tuple[State, dict[str, Any]]:
        """Returns what was saved under `step`, by default the latest."""
        arguments = ocp.args.Composite(state=ocp.args.PyTreeRestore(), meta=ocp.args.JsonRestore())
        path = self._path(self._existing(step))
        try:
            with quiet():
                saved = self._orbax.restore(path, args=arguments)
        except Exception as error:  # whatever Orbax finds: a missing file, a short one, broken JSON
            reason = str(error).strip().partition("\n")[0]
            raise TrainingError(
                f"the checkpoint {str(path)!r} cannot be read ({type(error).__name__}: {reason}): move it away to go "
                "on from the one before"
            ) from error
        stored = {key: np.asarray(array) for key, array in saved.state["arrays"].items()}
        empty = {key: _create(**spec) for key, spec in saved.meta["empty"].items()}
        return stored | empty, saved.meta["meta"]

    def steps(self) -> list[int]:
        """Returns the complete steps on disk now, whoever wrote them."""
        if not self._directory.is_dir():
            return []
        return sorted(int(entry.name) for entry in self._directory.iterdir() if entry.name.isdigit())

    def close(self) -> None:
        """Lets go of orbax."""
        self._orbax.close()

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _existing(self, step: int | None) -> int:
        steps = self.steps()
        if step is None and steps:
            return steps[-1]
        if step is None or step not in steps:
            wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
            known = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
            raise UsageError(f"{wanted} in {str(self._directory)!r}: {known}")
        return step

    def _prepare(self) -> None:
        """Creates the directory, and clears away what a killed process left of a save or a removal."""
        storage.prepare_directory(self._directory)
        for entry in self._directory.iterdir():
            if entry.name.endswith(_UNFINISHED) or storage.is_temporary(entry):
                storage.remove_directory(entry)
        self._saved_before = True

    def _prune(self, saved: int) -> None:
        # The step just saved stays, also when a run that went back saved it among later ones.
        others = [step for step in self.steps() if step != saved]
        for step in others[: max(0, len(others) + 1 - self._max_to_keep)]:
            storage.remove_directory(self._path(step))


def _handler() -> "ocp.CompositeCheckpointHandler":
    # Weights hardly shrink; without compression a save takes about half the time.
    arrays = ocp.PyTreeCheckpointHandler(use_compression=False)
    return ocp.CompositeCheckpointHandler(state=arrays, meta=ocp.JsonCheckpointHandler())


def _arguments(state: State, meta: dict[str, Any]) -> "ocp.args.Composite":
    """Returns what orbax is to save, in a form that it takes.

    It refuses arrays without elements, of which there is nothing to store but what they are, and a tree that
    is empty at the top, hence the one level above the keys.
    """
    arrays = {key: np.asarray(array) for key, array in state.items()}
    empty = {key: _describe(array) for key, array in arrays.items() if array.size == 0}
    tree = {"arrays": {key: array for key, array in arrays.items() if key not in empty}}
    document = {"meta": meta, "empty": empty}
    return ocp.args.Composite(state=ocp.args.PyTreeSave(tree), meta=ocp.args.JsonSave(document))


def _describe(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": array.dtype.name}


def _create(shape: list[int], dtype: str) -> np.ndarray:
    return np.empty(shape, np.dtype(dtype))
