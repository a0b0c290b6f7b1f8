"""Weights out of checkpoints: of another run of Everstep, of TensorFlow, and the variables of SavedModels."""

import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import keras

from everstep.checkpoint import manifest
from everstep.checkpoint import partial_read as selected
from everstep.checkpoint.manifest import Damaged
from everstep.data.tf_variables import TfVariables
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
from everstep.types import State

logger = logging.getLogger(__name__)

_MODEL = "model/"
_SEED = "seed_generator_state"
_LARGEST_MANIFEST = 4 << 20

# What a training program saves beside its model, and what an exported model lists a second time.
_OTHERS = re.compile(r".*\.OPTIMIZER_SLOT/|(_?optimizer|save_counter|global_step|_all_variables)(/|$)|_CHECKPOINTABLE_")


# -- runs -------------------------------------------------------------------------------------------------------------

# The newest checkpoint that is as it was written. A run that averages its weights evaluates the averages, and exports
# them. They are its result, so they are what others get of it, whether they name a checkpoint, the best one, or the
# export.


def plan_run(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a run's checkpoint, by the keys that both have below `model/`.

    Raises:
      UsageError: No checkpoint is as it was written.
    """
    path = _newest_good(paths)
    weights = {f"{_MODEL}{name}": variable for name, variable in model_weights(model).items()}
    stored = _run_shapes(path)
    averaged = {key: mean for mean, key in averaged_keys(stored).items() if stored.get(key) == stored[mean]}
    there = {key: shape for key, shape in stored.items() if key.startswith(_MODEL) and not key.endswith(_SEED)}
    here = {key: tuple(variable.shape) for key, variable in weights.items()}
    match = best([Naming({key: key for key in here}, {key: key for key in there})], here, there)

    def apply() -> None:
        taken = {key: averaged.get(key, key) for key in match.pairs}
        values = _read_run(path, taken.values())
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
    raise UsageError(f"no checkpoint in {str(paths[0].parent)!r} can be used: {', '.join(damages)}")


def _verify(path: Path) -> None:
    if (path / manifest.NAME).stat().st_size > _LARGEST_MANIFEST:
        raise Damaged("its manifest is far too large")
    manifest.verify(path)


def _refuse_links(path: Path) -> None:
    """A checkpoint has none; a link in it would be read wherever it leads."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            if os.path.islink(link := os.path.join(folder, name)):
                raise UsageError(f"{link!r} is a link, but a checkpoint holds files only")


def _run_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with _usable(path):
        return selected.shapes(path)


def _read_run(path: Path, keys: Iterable[str]) -> State:
    with _usable(path):
        return selected.read(path, keys)


@contextlib.contextmanager
def _usable(path: Path) -> Iterator[None]:
    try:
        yield
    except (Damaged, OSError) as error:
        raise UsageError(f"the checkpoint {str(path)!r} cannot be used: {error}") from error


# -- TensorFlow -------------------------------------------------------------------------------------------------------

# Only the variables of a SavedModel are loaded: its graph, which may read and write files, is not read.


def plan_tensorflow(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a checkpoint: by the names of variables, by the objects that hold them, or by their order.

    Raises:
      UsageError: TensorFlow is not installed, or the checkpoint is broken.
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
    """Yields the ways to name the variables, each once more without the outermost part, such as the model's name."""
    automatic = automatic_names(model)
    called = {name: variable.path.removeprefix(f"{model.name}/") for name, variable in weights.items()}
    held = object_paths(model)
    objects = {name: held[id(variable)] for name, variable in weights.items() if id(variable) in held}
    texts = {key: stored.names.get(key, key) for key in keys}
    paths = _object_paths(keys)
    for cut in (_whole, _shortened):
        ranked = unnumbered(map(cut, texts.values()), automatic)
        ours = unnumbered(called.values(), automatic)
        yield Naming({n: ours[p] for n, p in called.items()}, {k: ranked[cut(t)] for k, t in texts.items()})
    given = _given(called, texts, automatic)
    for cut in (_whole, _shortened):
        there = {key: cut(path) for key, path in paths.items()}
        yield Naming(objects, there, called_here=given[0], called_there=given[1])
    places, listed = _in_order(model), _in_lists(stored)
    if len(places) == len(listed):
        yield Naming({name: places[id(variable)] for name, variable in weights.items()}, listed, whole=True)


def _given(
    called: Mapping[str, str], texts: Mapping[str, str], automatic: set[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the names of variables on both sides that are all of people's making, with the same outermost part."""
    ours = {name: path for name, path in called.items() if _is_given(path, automatic)}
    known = set(ours.values())
    spelled = {key: text if text in known else _shortened(text) for key, text in texts.items()}
    return ours, {key: text for key, text in spelled.items() if _is_given(text, automatic)}


def _is_given(path: str, automatic: set[str]) -> bool:
    *layers, _ = path.split("/")
    return bool(layers) and not any(re.sub(r"_\d+$", "", layer) in automatic for layer in layers)


def _whole(path: str) -> str:
    return path


def _shortened(path: str) -> str:
    return path.partition("/")[2] or path


def _object_paths(keys: Iterable[str]) -> dict[str, str]:
    """Returns the paths of objects: without underscores, and the layers of a model by their rank among those with any.

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
    """Returns the place of each variable in the lists that Keras exports, with what is known of its name, by its id."""
    lists = {"trainable_variables": model.trainable_variables, "non_trainable_variables": model.non_trainable_variables}
    return {id(v): f"{name}/{place}/{v.name}" for name, held in lists.items() for place, v in enumerate(held)}


def _in_lists(stored: TfVariables) -> dict[str, str]:
    return {
        key: f"{name}/{place}/{stored.names.get(key, '').rpartition('/')[2]}"
        for name, keys in stored.lists.items()
        for place, key in enumerate(keys)
    }
