"""The average of several checkpoints, itself a checkpoint.

Weights at the end of training move around an optimum; their mean is nearer to it than each of them. Integers, such as
the counters of random generators, are not averaged: the newest checkpoint's are taken.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from everstep.checkpoint import arrays, manifest, partial_read
from everstep.checkpoint.manifest import Damaged, Manifest
from everstep.errors import TrainingError, UsageError
from everstep.types import State

Part = Callable[[Sequence[str]], dict[str, str]]
"""From the keys of a checkpoint to those to average, each with the key of what is read for it."""


def write_average(paths: Sequence[Path], target: Path, part: Part) -> None:
    """Writes the average of checkpoints as a new one.

    Floats are added in float64, and rounded once, at the end. One checkpoint is held at a time.

    Args:
      paths: The checkpoints, the newest last.
      target: A directory that does not exist yet.
      part: Which arrays to average.

    Raises:
      UsageError: They do not have the same arrays.
      TrainingError: One is damaged.
    """
    records = [_verified(path) for path in paths]
    newest, meta = records[-1], arrays.read_meta(paths[-1])
    document = {"step": newest.step, "stage": meta.get("stage", 0), "averaged": [record.step for record in records]}
    arrays.write(target, average(paths, part), document)
    manifest.write(target, Manifest(newest.step, newest.run, newest.saved, {}, {}, newest.version))


def average(paths: Sequence[Path], part: Part) -> State:
    """Returns the average of checkpoints.

    Raises:
      UsageError: They do not have the same arrays.
      TrainingError: One is damaged.
    """
    sums: State = {}
    types: dict[str, np.dtype] = {}
    for path in paths:
        _add(_read(path, part), sums, types, path)
    return {key: _mean(total, types[key], len(paths)) for key, total in sums.items()}


def _add(state: State, sums: State, types: dict[str, np.dtype], path: Path) -> None:
    """Adds a checkpoint to the sums; nothing of it is kept but whole numbers."""
    if sums:
        _require_alike(sums, state, path)
    for key, array in state.items():
        types[key] = array.dtype
        if not _is_float(array.dtype):
            sums[key] = array
        elif key in sums:
            sums[key] += array
        else:
            sums[key] = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _read(path: Path, part: Part) -> State:
    try:
        shapes = partial_read.shapes(path)
        empty = arrays.read_empty(path)
        wanted = part([*shapes, *empty])
        found = partial_read.read(path, [key for key in wanted.values() if key in shapes])
    except Damaged as damage:
        raise _damaged(path, damage) from damage
    return {key: found[source] if source in found else empty[source] for key, source in wanted.items()}


def _verified(path: Path) -> Manifest:
    try:
        return manifest.verify(path)
    except Damaged as damage:
        raise _damaged(path, damage) from damage


def _damaged(path: Path, damage: Damaged) -> TrainingError:
    return TrainingError(
        f"the checkpoint is damaged: {damage}", key="--checkpoint", received=str(path), remedy="choose other steps"
    )


def _require_alike(sums: State, other: State, path: Path) -> None:
    missing = [key for key in (*sums, *other) if not (key in sums and key in other)]
    unlike = missing or [key for key in sums if sums[key].shape != other[key].shape]
    if unlike:
        difference = "is in one of them only" if missing else "has another shape"
        raise UsageError(
            f"cannot be averaged with those before it: {unlike[0]} {difference}",
            key="--checkpoint",
            received=str(path),
            remedy="choose steps of the same model",
        )


def _is_float(dtype: np.dtype) -> bool:
    # Types that NumPy does not know itself are of the kind V: bfloat16, but int4 as well.
    return dtype.kind in "fc" or (dtype.kind == "V" and "int" not in dtype.name)


def _mean(total: np.ndarray, dtype: np.dtype, count: int) -> np.ndarray:
    return (total / count).astype(dtype) if _is_float(dtype) else total
