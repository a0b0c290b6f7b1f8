"""Names that users gave take precedence over the order of layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from everstep.task.initial.loading import load
from everstep.task.initial.matching import Naming, best, model_weights

pytestmark = pytest.mark.backend


def net(*called: str | None, classes: int = 4, head: str | None = "head") -> keras.Model:
    """Returns a model with square layers of these names, None for an automatic one, and a head."""
    x = inputs = keras.Input((4,))
    for name in called:
        x = layers.Dense(4, name=name)(x)
    return keras.Model(inputs, layers.Dense(classes, name=head)(x))


def values(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: keras.ops.convert_to_numpy(variable.value) for name, variable in model_weights(model).items()}


def taken(model: keras.Model, source: keras.Model, path: str) -> dict[str, str]:
    """Loads weights; returns for each layer of the model the layer that its kernel comes from."""
    load(model, path)
    ours, theirs = (
        {k.removesuffix("/kernel"): v for k, v in values(m).items() if "kernel" in k} for m in (model, source)
    )
    return {here: there for here, a in ours.items() for there, b in theirs.items() if np.array_equal(a, b)}


@pytest.fixture
def stored(request, tmp_path):
    """Returns a function that writes a model in one of three formats and returns the path."""

    def write(model: keras.Model) -> str:
        path = tmp_path / f"a{request.param}"
        if request.param == ".keras":
            model.save(path)
        elif request.param == ".weights.h5":
            model.save_weights(path)
        else:
            _write_tensorflow(model, str(path))
        return str(path)

    return write


def _write_tensorflow(model: keras.Model, prefix: str) -> None:
    """Writes a checkpoint as Keras 2 did: by the rank of layers, with the names of variables."""
    root = tf.Module()
    for rank, layer in enumerate(layer for layer in model.layers if layer.weights):
        part = tf.Module()
        for weight in layer.weights:
            setattr(
                part, weight.name, tf.Variable(keras.ops.convert_to_numpy(weight), name=f"{layer.name}/{weight.name}")
            )
        setattr(root, f"layer_with_weights-{rank}", part)
    tf.train.Checkpoint(root).write(prefix)


FORMS = [".keras", ".weights.h5", ""]


@pytest.mark.parametrize("stored", FORMS, indirect=True)
def test_names_win_if_as_many_match_by_order(stored):
    source = net("features", "mixer", classes=1)
    model = net("adapter", "features", "mixer", classes=3, head="new_head")
    assert taken(model, source, stored(source)) == {"features": "features", "mixer": "mixer"}


@pytest.mark.parametrize("stored", FORMS, indirect=True)
def test_names_win_if_more_match_by_order(stored):
    source = net("features", "mixer", "old")
    model = net("adapter", "features", "mixer", head="new")
    assert taken(model, source, stored(source)) == {"features": "features", "mixer": "mixer"}


@pytest.mark.parametrize("stored", [".keras"], indirect=True)
def test_a_new_named_layer_before_unnamed_ones(stored):
    source = net(None, None, classes=1)
    model = net("adapter", None, None, classes=3, head="new_head")
    assert taken(model, source, stored(source)) == {"dense": "dense", "dense_1": "dense_1"}


@pytest.mark.parametrize("stored", [".keras"], indirect=True)
def test_renamed_layers_match_by_order(stored):
    source, model = net("a", "b"), net("c", "d", head="e")
    assert taken(model, source, stored(source)) == {"c": "a", "d": "b", "e": "head"}


@pytest.mark.parametrize("stored", [".keras"], indirect=True)
def test_unnamed_layers_match_by_the_order_of_the_graph_not_of_creation(stored):
    def created_backwards() -> keras.Model:
        last, first = layers.Dense(4), layers.Dense(4)
        inputs = keras.Input((4,))
        return keras.Model(inputs, last(first(inputs)))

    source = net(None, head=None)
    model = created_backwards()
    load(model, stored(source))
    np.testing.assert_array_equal(np.asarray(model.layers[1].kernel), np.asarray(source.layers[1].kernel))


def test_ambiguous_names_are_ignored():
    shape = {"a": (1,), "b": (1,)}
    called = dict.fromkeys(shape, "same")
    order = Naming({"a": "0", "b": "1"}, {"a": "1", "b": "0"}, called_here=called, called_there=called)
    assert best([order], shape, shape).pairs == {"a": "b", "b": "a"}
