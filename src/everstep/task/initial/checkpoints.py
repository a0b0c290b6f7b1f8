"""Reads weights from checkpoints of runs, TensorFlow checkpoints, and the variables of SavedModels."""

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.checkpoint import Base, Damaged, Digest, base, manifest, partial_read
from everstep.data import TfVariables
from everstep.errors import UsageError
from everstep.task.initial.find import AVERAGES, RUN
from everstep.task.initial.matching import (
    Naming,
    Plan,
    automatic_names,
    best,
    model_weights,
    object_paths,
    report_of,
    unnumbered,
)
from everstep.task.optim.ema import averaged_keys

logger = logging.getLogger(__name__)

_MODEL = "model/"
_SEED = "seed_generator_state"
_LARGEST_MANIFEST = 4 << 20

# What a training program saves beside its model, and what an exported model stores twice.
_OTHERS = re.compile(r".*\.OPTIMIZER_SLOT/|(_?optimizer|save_counter|global_step|_all_variables)(/|$)|_CHECKPOINTABLE_")


# -- runs -------------------------------------------------------------------------------------------------------------

# The newest intact checkpoint is used. A run that averages its weights evaluates and exports the averages: they are its
# result, so they are what is loaded from any of its checkpoints, too.


def plan_run(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a checkpoint of a run, by the keys below `model/`.

    Frozen weights that the run's task provides, and the checkpoint does not contain, must be in the model already.

    Raises:
      UsageError: No checkpoint is intact, or the model was built with other frozen weights.
    """
    path, on = _newest_good(paths)
    weights = {f"{_MODEL}{name}": variable for name, variable in model_weights(model).items()}
    with _usable(path):
        stored = partial_read.shapes(path)
    built = _built(weights, stored, on, path) if on is not None and on.name else {}
    stored |= built
    averaged = {key: mean for mean, key in averaged_keys(stored).items() if stored.get(key) == stored[mean]}
    there = {key: shape for key, shape in stored.items() if key.startswith(_MODEL) and not key.endswith(_SEED)}
    here = {key: tuple(variable.shape) for key, variable in weights.items()}
    match = best([Naming({key: key for key in here}, {key: key for key in there})], here, there)

    def apply() -> None:
        taken = {key: averaged.get(key, key) for key in match.pairs if key not in built}
        with _usable(path):
            values = partial_read.read(path, taken.values())
        for key, other in taken.items():
            weights[key].assign(values[other])

    report = report_of(match, path, {key: key.removeprefix(_MODEL) for key in here})
    kind = AVERAGES if any(key in averaged for key in match.pairs) else RUN
    return Plan(dataclasses.replace(report, kind=kind), apply)


def _built(
    weights: Mapping[str, keras.Variable], stored: Mapping[str, Any], on: Base, path: Path
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the weights that the model was built with, and that the checkpoint does not contain.

    Raises:
      UsageError: They are not those that the run was trained on.
    """
    built = sorted(key for key in weights if key not in stored)
    found = Digest()
    for key in built:
        value = np.asarray(keras.ops.convert_to_numpy(weights[key]))
        found.add(key, value.astype(np.int64) if value.dtype.kind in "iu" else value)
    if found.hex() != on.digest:
        raise UsageError(
            f"its run was trained on frozen weights of {on.name!r}, with the digest {on.digest}; those of this model "
            f"have {found.hex()}",
            received=str(path),
            remedy=f"build the model from {on.name!r} first",
        )
    return {key: tuple(weights[key].shape) for key in built}


def _newest_good(paths: tuple[Path, ...]) -> tuple[Path, Base | None]:
    """Returns the newest intact checkpoint, and what it says about its frozen weights."""
    damages = []
    for path in paths:
        _refuse_links(path)
        try:
            if (path / manifest.NAME).stat().st_size > _LARGEST_MANIFEST:
                raise Damaged("the manifest is far too large")
            if (place := base.find(path)) is not None:
                _refuse_links(place)
            return path, base.verify(path).base
        except UsageError:
            raise
        except Exception as damage:  # an untrusted manifest may raise anything
            logger.warning("the checkpoint %s is damaged: %s", path, damage)
            damages.append(f"{path.name} ({damage})")
    raise UsageError(f"contains no usable checkpoint: {', '.join(damages)}", received=str(paths[0].parent))


def _refuse_links(path: Path) -> None:
    """Refuses links in a checkpoint, which would be followed when it is read."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            if os.path.islink(link := os.path.join(folder, name)):
                raise UsageError("is a link, but a checkpoint contains only files", received=link)


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except (Damaged, base.MissingBase, OSError) as error:
        raise UsageError(f"the checkpoint cannot be used: {error}", received=str(path)) from error


# -- TensorFlow -------------------------------------------------------------------------------------------------------

# Only the variables of a SavedModel are read: its graph, which may read and write files, is never loaded.


def plan_tensorflow(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a checkpoint: by the names of variables, by the objects that hold them, or by their order.

    Raises:
      UsageError: TensorFlow is not installed, or the checkpoint is damaged.
    """
    weights = model_weights(model)
    here = {name: tuple(variable.shape) for name, variable in weights.items()}
    stored = TfVariables(str(paths[0]))
    there = {
        key: shape
        for key, shape in stored.shapes.items()
        if not _OTHERS.match(key) and not stored.names.get(key, "").endswith(_SEED)
    }
    match = best(_namings(model, weights, stored, there), here, there)

    def apply() -> None:
        for name, value in {name: stored.read(key) for name, key in match.pairs.items()}.items():
            weights[name].assign(value)

    return Plan(report_of(match, paths[0]), apply)


def _namings(
    model: keras.Model, weights: dict[str, keras.Variable], stored: TfVariables, keys: Iterable[str]
) -> Iterator[Naming]:
    """Yields the ways to name the variables, each with and without the outermost part (the name of the model)."""
    automatic = automatic_names(model)
    called = {name: variable.path.removeprefix(f"{model.name}/") for name, variable in weights.items()}
    held = object_paths(model)
    objects = {name: held[id(variable)] for name, variable in weights.items() if id(variable) in held}
    texts = {key: stored.names.get(key, key) for key in keys}
    paths = _object_paths(keys)
    for cut in (str, _shortened):
        ranked = unnumbered(map(cut, texts.values()), automatic)
        ours = unnumbered(called.values(), automatic)
        yield Naming({n: ours[p] for n, p in called.items()}, {k: ranked[cut(t)] for k, t in texts.items()})
    given = _given(called, texts, automatic)
    for cut in (str, _shortened):
        there = {key: cut(path) for key, path in paths.items()}
        yield Naming(objects, there, called_here=given[0], called_there=given[1])
    places, listed = _in_order(model), _in_lists(stored)
    if len(places) == len(listed):
        yield Naming({name: places[id(variable)] for name, variable in weights.items()}, listed, whole=True)


def _given(
    called: Mapping[str, str], texts: Mapping[str, str], automatic: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the variables on both sides whose layers were all named by users, with the same outermost part."""
    ours = {name: path for name, path in called.items() if _is_given(path, automatic)}
    known = set(ours.values())
    spelled = {key: text if text in known else _shortened(text) for key, text in texts.items()}
    return ours, {key: text for key, text in spelled.items() if _is_given(text, automatic)}


def _is_given(path: str, automatic: set[str]) -> bool:
    *layers, _ = path.split("/")
    return bool(layers) and not any(re.sub(r"_\d+$", "", layer) in automatic for layer in layers)


def _shortened(path: str) -> str:
    return path.partition("/")[2] or path


def _object_paths(keys: Iterable[str]) -> dict[str, str]:
    """Returns the paths of objects without underscores, and with the rank of each layer among those with weights.

    Keras 2 wrote `layer_with_weights-1/kernel`, Keras 3 writes `_functional/_operations/3/_kernel`.
    """
    plain = {}
    for key in keys:
        parts = key.partition("/.ATTRIBUTES")[0].split("/")
        path = "/".join(part.lstrip("_") for part in parts if part != "_functional")
        plain[key] = re.sub(r"(?<![^/])operations/(\d+)(?![^/])", r"operations_\1", path)
    ranked = unnumbered(plain.values(), {"operations"})
    return {key: ranked[path].replace("operations#", "layer_with_weights-") for key, path in plain.items()}


def _in_order(model: keras.Model) -> dict[int, str]:
    """Returns the position of each variable in the lists that Keras exports, and its last name, by the id."""
    lists = {"trainable_variables": model.trainable_variables, "non_trainable_variables": model.non_trainable_variables}
    return {id(v): f"{name}/{place}/{v.name}" for name, held in lists.items() for place, v in enumerate(held)}


def _in_lists(stored: TfVariables) -> dict[str, str]:
    return {
        key: f"{name}/{place}/{stored.names.get(key, '').rpartition('/')[2]}"
        for name, keys in stored.lists.items()
        for place, key in enumerate(keys)
    }
