"""Weights out of TensorFlow's checkpoints, and of the variables of SavedModels.

Nothing of a SavedModel is loaded but its variables: its graph, which may read and write files, is not looked at.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import keras
import numpy as np

from everstep.data.tf_variables import TfVariables
from everstep.errors import UsageError
from everstep.task.initial import names
from everstep.task.initial.find import KEY
from everstep.task.initial.matching import Naming, best
from everstep.task.initial.plan import Plan, report_of

# What a training program saves beside its model, and what an exported model lists a second time.
_OTHERS = re.compile(r".*\.OPTIMIZER_SLOT/|(_?optimizer|save_counter|global_step|_all_variables)(/|$)|_CHECKPOINTABLE_")
_SEED = "seed_generator_state"


def plan(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a checkpoint: by the names of variables, by the objects that hold them, or by their order.

    Raises:
      UsageError: TensorFlow is not installed, or the checkpoint is broken.
    """
    weights = names.weights(model)
    here = {name: tuple(variable.shape) for name, variable in weights.items()}
    stored = _stored(paths[0])
    there = {
        key: shape
        for key, shape in stored.shapes.items()
        if not _OTHERS.match(key) and not stored.names.get(key, "").endswith(_SEED)
    }
    match = best(_namings(model, weights, stored, there), here, there)

    def apply() -> None:
        for name, value in {name: _read(stored, key) for name, key in match.pairs.items()}.items():
            weights[name].assign(value)

    return Plan(report_of(match, paths[0]), apply)


def _stored(prefix: Path) -> TfVariables:
    with _named():
        return TfVariables(str(prefix))


def _read(stored: TfVariables, key: str) -> np.ndarray:
    with _named():
        return stored.read(key)


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Says in errors which setting they are about."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{KEY}: {error}") from error


def _namings(
    model: keras.Model, weights: dict[str, keras.Variable], stored: TfVariables, keys: Iterable[str]
) -> Iterator[Naming]:
    """Yields the ways to name the variables, each once more without the outermost part, such as the model's name."""
    automatic = names.automatic_names(model)
    called = {name: variable.path.removeprefix(f"{model.name}/") for name, variable in weights.items()}
    held = names.object_paths(model)
    objects = {name: held[id(variable)] for name, variable in weights.items() if id(variable) in held}
    texts = {key: stored.names.get(key, key) for key in keys}
    paths = _object_paths(keys)
    for cut in (_whole, _shortened):
        ranked = names.unnumbered(map(cut, texts.values()), automatic)
        ours = names.unnumbered(called.values(), automatic)
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
    ranked = names.unnumbered(plain.values(), {"operations"})
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
