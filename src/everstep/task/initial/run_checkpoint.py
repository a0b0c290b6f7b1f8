"""Weights of another run of Everstep: the newest of its checkpoints that is as it was written.

A run that averages its weights evaluates the averages, and exports them. They are its result, so they are what others
get of it, whether they name a checkpoint, the best one, or the export.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import keras

from everstep.checkpoint import manifest, selected
from everstep.checkpoint.manifest import Damaged
from everstep.errors import UsageError
from everstep.optim.averaged_state import averaged_keys
from everstep.task.initial import names
from everstep.task.initial.find import AVERAGES, KEY, RUN
from everstep.task.initial.matching import Naming, best
from everstep.task.initial.plan import Plan, report_of
from everstep.types import State

logger = logging.getLogger(__name__)

_MODEL = "model/"
_SEED = "seed_generator_state"
_LARGEST_MANIFEST = 4 << 20


def plan(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a run's checkpoint, by the keys that both have below `model/`.

    Raises:
      UsageError: No checkpoint is as it was written.
    """
    path = _newest_good(paths)
    weights = {f"{_MODEL}{name}": variable for name, variable in names.weights(model).items()}
    stored = _shapes(path)
    averaged = {key: mean for mean, key in averaged_keys(stored).items() if stored.get(key) == stored[mean]}
    there = {key: shape for key, shape in stored.items() if key.startswith(_MODEL) and not key.endswith(_SEED)}
    here = {key: tuple(variable.shape) for key, variable in weights.items()}
    match = best([Naming({key: key for key in here}, {key: key for key in there})], here, there)

    def apply() -> None:
        taken = {key: averaged.get(key, key) for key in match.pairs}
        values = _read(path, taken.values())
        for key, other in taken.items():
            weights[key].assign(values[other])

    report = report_of(match, path, {key: key.removeprefix(_MODEL) for key in here})
    kind = AVERAGES if any(key in averaged for key in match.pairs) else RUN
    return Plan(dataclasses.replace(report, kind=kind), apply)


def _newest_good(paths: tuple[Path, ...]) -> Path:
    damages = []
    for path in paths:
        _refuse_links(path)
        try:
            _verify(path)
            return path
        except UsageError:
            raise
        except Exception as damage:  # or whatever a manifest brings about that somebody else wrote
            logger.warning("the checkpoint %s is damaged: %s", path, damage)
            damages.append(f"{path.name} ({damage})")
    raise UsageError(f"{KEY}: no checkpoint in {str(paths[0].parent)!r} can be used: {', '.join(damages)}")


def _verify(path: Path) -> None:
    if (path / manifest.NAME).stat().st_size > _LARGEST_MANIFEST:
        raise Damaged("its manifest is far too large")
    manifest.verify(path)


def _refuse_links(path: Path) -> None:
    """A checkpoint has none; a link in it would be read wherever it leads."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            if os.path.islink(link := os.path.join(folder, name)):
                raise UsageError(f"{KEY}: {link!r} is a link: a checkpoint holds files only")


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with _usable(path):
        return selected.shapes(path)


def _read(path: Path, keys: Iterable[str]) -> State:
    with _usable(path):
        return selected.read(path, keys)


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except (Damaged, OSError) as error:
        raise UsageError(f"{KEY}: the checkpoint {str(path)!r} cannot be used: {error}") from error
