"""Weights of another run of Everstep: the newest of its checkpoints that is as it was written."""

import logging
import os
from pathlib import Path

import keras

from everstep.checkpoint import manifest, selected
from everstep.checkpoint.manifest import Damaged
from everstep.errors import UsageError
from everstep.task.initial import names
from everstep.task.initial.find import KEY
from everstep.task.initial.matching import Naming, best
from everstep.task.initial.plan import Plan, report_of

logger = logging.getLogger(__name__)

_MODEL = "model/"
_SEED = "seed_generator_state"


def plan(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a run's checkpoint, by the keys that both have below `model/`.

    Raises:
      UsageError: No checkpoint is as it was written.
    """
    path = _newest_good(paths)
    weights = names.weights(model)
    stored = {key: shape for key, shape in _shapes(path).items() if key.startswith(_MODEL) and not key.endswith(_SEED)}
    here = {f"{_MODEL}{name}": tuple(variable.shape) for name, variable in weights.items()}
    match = best([Naming({key: key for key in here}, {key: key for key in stored})], here, stored)

    def apply() -> None:
        for key, value in selected.read(path, match.pairs.values()).items():
            weights[key.removeprefix(_MODEL)].assign(value)

    return Plan(report_of(match, path, {key: key.removeprefix(_MODEL) for key in here}), apply)


def _newest_good(paths: tuple[Path, ...]) -> Path:
    damages = []
    for path in paths:
        _refuse_links(path)
        try:
            manifest.verify(path)
            return path
        except Damaged as damage:
            logger.warning("%s: the checkpoint %s is damaged: %s", KEY, path, damage)
            damages.append(f"{path.name} ({damage})")
    raise UsageError(f"{KEY}: no checkpoint in {str(paths[0].parent)!r} can be used: {', '.join(damages)}")


def _refuse_links(path: Path) -> None:
    """A checkpoint has none; a link in it would be read wherever it leads."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            if os.path.islink(link := os.path.join(folder, name)):
                raise UsageError(f"{KEY}: {link!r} is a link: a checkpoint holds files only")


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        return selected.shapes(path)
    except Exception as error:  # of Orbax whatever it finds in files that somebody else wrote
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"{KEY}: the checkpoint {str(path)!r} cannot be read: {reason}") from error
