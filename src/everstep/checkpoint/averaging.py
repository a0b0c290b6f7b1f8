"""The average of several checkpoints, itself a checkpoint: the arithmetic. `run/averaged_checkpoint.py` calls it.

Weights at the end of training move around an optimum; their mean is often nearer to it than each of them. Integers,
such as the counters of random generators, are not averaged: those of the newest checkpoint are taken.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from everstep.checkpoint import arrays, base, manifest, partial_read
from everstep.checkpoint.manifest import Damaged, Manifest
from everstep.errors import TrainingError, UsageError
from everstep.types import State

Part = Callable[[Sequence[str]], dict[str, str]]
"""Selects from a checkpoint's keys: returns the keys of the average, each with the key that is read for it."""


def write_average(paths: Sequence[Path], target: Path, part: Part) -> None:
    """Writes the average of checkpoints as a new checkpoint; see `average`.

    Args:
      paths: The checkpoints, the newest last.
      target: A directory that does not exist yet.
      part: Which arrays to average.

    Raises:
      UsageError: The checkpoints do not have the same arrays, or other frozen weights.
      TrainingError: A checkpoint is damaged.
    """
    records = []
    for path in paths:
        with _naming_damage(path):
            records.append(base.verify(path))
    # Frozen weights of the run's own base are arrays like all others, and part of the average.
    named = {record.base if record.base is not None and record.base.name else None for record in records}
    if len(named) > 1:
        raise UsageError(
            "cannot be averaged: they have other frozen weights",
            key="--checkpoint",
            received=", ".join(str(path) for path in paths),
            remedy="choose steps on the same base",
        )
    newest, meta = records[-1], arrays.read_meta(paths[-1])
    document = {"step": newest.step, "stage": meta.get("stage", 0), "averaged": [record.step for record in records]}
    arrays.write(target, average(paths, part), document)
    on = named.pop()
    manifest.write(target, Manifest(newest.step, newest.run, newest.saved, {}, {}, newest.version, base=on))


def average(paths: Sequence[Path], part: Part) -> State:
    """Returns the average of checkpoints.

    Floats are added in float64 and rounded once, at the end. One checkpoint is in memory at a time, beside the sums.

    Raises:
      UsageError: The checkpoints do not have the same arrays.
      TrainingError: A checkpoint is damaged.
    """
    sums: State = {}
    dtypes: dict[str, np.dtype] = {}
    for path in paths:
        state = _read(path, part)
        if sums:
            _require_same_arrays(sums, state, path)
        for key, array in state.items():
            dtypes[key] = array.dtype
            if not _is_float(array.dtype):
                sums[key] = array  # the newest one's, in the end
            elif key in sums:
                sums[key] += array
            else:
                sums[key] = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return {
        key: (total / len(paths)).astype(dtypes[key]) if _is_float(dtypes[key]) else total
        for key, total in sums.items()
    }


def _read(path: Path, part: Part) -> State:
    with _naming_damage(path):
        shapes = partial_read.shapes(path)
        empty = arrays.read_empty(path)
        wanted = part([*shapes, *empty])
        found = partial_read.read(path, [key for key in wanted.values() if key in shapes])
    return {key: found[source] if source in found else empty[source] for key, source in wanted.items()}


@contextlib.contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """Inside the block damage is a `TrainingError` that names the checkpoint."""
    try:
        yield
    except Damaged as damage:
        raise TrainingError(
            f"the checkpoint is damaged: {damage}", key="--checkpoint", received=str(path), remedy="choose other steps"
        ) from damage


def _require_same_arrays(sums: State, other: State, path: Path) -> None:
    missing = [key for key in (*sums, *other) if not (key in sums and key in other)]
    different = missing or [key for key in sums if sums[key].shape != other[key].shape]
    if different:
        difference = "is in one of them only" if missing else "has another shape"
        raise UsageError(
            f"cannot be averaged with those before it: {different[0]} {difference}",
            key="--checkpoint",
            received=str(path),
            remedy="choose steps of the same model",
        )


def _is_float(dtype: np.dtype) -> bool:
    # The types of ml_dtypes are of the kind V for NumPy: bfloat16, but int4 as well.
    return dtype.kind in "fc" or (dtype.kind == "V" and "int" not in dtype.name)
