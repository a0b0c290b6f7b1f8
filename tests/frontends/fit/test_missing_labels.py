"""Data without labels is never compared with its own inputs: refused before the first step, wherever it comes from."""

import keras
import numpy as np
import pytest
from keras import layers

import everstep as es
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def compiled_model(outputs=1, **options):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(outputs, kernel_regularizer="l2")])
    model.compile("sgd", **{"loss": "mse", **options})
    return model


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[8 * index : 8 * index + 8]


class Samples:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return X[index]


def generated():
    yield X[:8]
    yield (X[8:],)


def of_tensorflow():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(X).batch(8)


SOURCES = {
    "array": lambda: X,
    "tuple": lambda: (X,),
    "list": lambda: [X],
    "PyDataset": Batches,
    "by index": Samples,
    "generator function": lambda: generated,
    "tf.data": of_tensorflow,
}
ARRAYS = ("array", "tuple", "list")


@pytest.mark.parametrize("kind", SOURCES)
def test_training_data_without_labels_is_refused(kind, tmp_path):
    model = compiled_model()
    before = [weight.copy() for weight in model.get_weights()]
    key, reason = ("y", "missing") if kind in ARRAYS else ("", "without labels")
    with raises_problem(key=key, reason=reason):
        es.fit(model, SOURCES[kind](), steps_per_epoch=2, verbose=0, model_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for was, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(was, now)


@pytest.mark.parametrize("kind", SOURCES)
def test_validation_data_without_labels_is_refused(kind):
    key, reason = ("validation_data", "no labels") if kind in ARRAYS else ("", "without labels")
    with raises_problem(key=key, reason=reason):
        es.fit(compiled_model(), X, Y, validation_data=SOURCES[kind](), verbose=0)


@pytest.mark.parametrize("outputs", [1, 4])  # shapes that broadcast, and those that are equal
@pytest.mark.parametrize("options", [{}, {"loss": None, "metrics": ["mae"]}])
def test_a_metric_and_a_loss_of_any_shape_are_refused(outputs, options):
    with raises_problem(reason="labels"):
        es.fit(compiled_model(outputs, **options), Batches(), verbose=0)


def test_a_loss_that_needs_none_trains():
    history = es.fit(compiled_model(loss=None), Batches(), validation_data=X, verbose=0)
    assert history.history["loss"]
    assert history.history["val_loss"]


def test_inputs_are_labels_where_the_data_says_so():
    history = es.fit(compiled_model(4), X, X, validation_data=(X, X), verbose=0)
    assert history.history["val_loss"]


def test_a_step_of_the_models_own_gets_inputs_alone():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(4)

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            assert y is None
            return keras.ops.mean(keras.ops.square(y_pred - x))

    model = Own()
    model.compile("sgd")
    assert es.fit(model, X, validation_data=X, verbose=0).history["val_loss"]


def classifier():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


CLASSES = (X[:, 0] > 0).astype("float32")


@pytest.mark.parametrize("row", [0, len(CLASSES) - 1], ids=["in the first batch", "in the last batch"])
@pytest.mark.parametrize("weights", [None, {0: 1.0, 1: 2.0}], ids=["", "with class weights"])
def test_labels_that_are_nan(row, weights):
    """The same error on every backend; PyTorch would index with them."""
    wrong = CLASSES.copy()
    wrong[row] = np.nan
    model = classifier()
    before = model.get_weights()
    with raises_problem(key="y", reason="must be whole numbers from 0 to 1, but 1 of .* the first is nan"):
        es.fit(model, X, wrong, batch_size=8, shuffle=False, class_weight=weights, verbose=0)
    if weights is None:
        with raises_problem(key="validation_data", reason="1 of .* the first is nan"):
            es.fit(model, X, CLASSES, batch_size=8, validation_data=(X, wrong), verbose=0)
        assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True)), "before a step"


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        (CLASSES + 1, "the labels must be whole numbers from 0 to 1"),
        (np.array(1), "is a single value, expected one for each sample"),
        (CLASSES.astype("complex64"), "no device computes with arrays of this dtype"),
        (np.array(["a"] * len(CLASSES), object), "holds text"),
    ],
)
def test_labels_that_are_wrong_are_called_y(y, reason):
    model = classifier()
    if y.dtype == object:
        model.compile("sgd", "mse")
    with raises_problem(key="y", reason=reason):
        es.fit(model, X, y, verbose=0)
    with raises_problem(key="validation_data", reason=reason):
        es.fit(model, X, CLASSES, validation_data=(X, y), verbose=0)
