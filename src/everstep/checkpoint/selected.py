"""Some arrays of a checkpoint, without the others: their shapes first, then those that are wanted."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from everstep.checkpoint.manifest import Damaged
from everstep.checkpoint.quiet import quiet
from everstep.types import State

with quiet():
    import orbax.checkpoint as ocp


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array with elements, by key; reads none of them.

    Raises:
      Damaged: An array is stored in pieces that are larger than itself, which would be unpacked to read it.
    """
    with quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
        stored = orbax.metadata(path.absolute() / "state").item_metadata.tree["arrays"]
    for key, array in stored.items():
        piece = array.storage.chunk_shape if array.storage else array.shape
        if any(chunk > max(size, 1) for chunk, size in zip(piece, array.shape, strict=True)):
            raise Damaged(f"{key} of shape {tuple(array.shape)} is stored in pieces of {tuple(piece)}")
    return {key: tuple(array.shape) for key, array in stored.items()}


def read(path: Path, keys: Iterable[str]) -> State:
    """Returns the arrays of these keys, as they were written."""
    wanted = {key: ocp.RestoreArgs(restore_type=np.ndarray) for key in keys}
    arguments = ocp.args.PyTreeRestore(
        item={"arrays": dict.fromkeys(wanted, 0)}, restore_args={"arrays": wanted}, partial_restore=True
    )
    with quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as orbax:
        found = orbax.restore(path.absolute() / "state", args=arguments)["arrays"]
    return {key: np.asarray(array) for key, array in found.items()}
