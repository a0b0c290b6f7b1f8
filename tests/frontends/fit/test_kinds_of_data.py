"""Sparse and ragged inputs, text, and data that no model can use: as in Keras, or refused in a line that helps."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep as es
from everstep.data import sparse
from everstep.errors import TrainingError
from everstep.testing.problems import raises_problem

BACKEND = keras.backend.backend()
pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]
only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="the other backends have none")

RNG = np.random.default_rng(0)
DENSE = (RNG.normal(size=(20, 6)) * (RNG.random((20, 6)) < 0.3)).astype("float32")
Y = DENSE.sum(axis=1, keepdims=True)
CLASSES = np.arange(20) % 3
GIVEN = {"epochs": 2, "verbose": 0}


def linear():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,), sparse=BACKEND != "torch"), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def scipy_matrix():
    return pytest.importorskip("scipy.sparse").csr_matrix(DENSE)


def tensorflow_sparse():
    import tensorflow as tf

    return tf.sparse.from_dense(DENSE)


def bcoo():
    sparse = pytest.importorskip("jax.experimental.sparse")
    return sparse.BCOO.fromdense(DENSE)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(5 * index, 5 * index + 5)
        return scipy_matrix()[rows], Y[rows]


def generated():
    for index in range(4):
        yield Batches()[index]


def dataset():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((tensorflow_sparse(), Y)).batch(5)


@pytest.fixture(scope="module")
def dense():
    return linear().fit(DENSE, Y, batch_size=5, shuffle=False, **GIVEN).history["loss"]


@pytest.mark.parametrize("matrix", [scipy_matrix, tensorflow_sparse, bcoo])
def test_sparse_matrices(matrix, dense):
    history = es.fit(linear(), matrix(), Y, batch_size=5, shuffle=False, validation_data=(matrix(), Y), **GIVEN)
    np.testing.assert_allclose(history.history["loss"], dense, rtol=1e-5)
    assert len(history.history["val_loss"]) == 2


@pytest.mark.parametrize("source", [lambda: generated, Batches, dataset])
def test_sparse_batches(source, dense):
    history = es.fit(linear(), source(), shuffle=False, **GIVEN)
    np.testing.assert_allclose(history.history["loss"], dense, rtol=1e-5)


class Once(es.Stream):
    """The rows in their order, made for one epoch; whether it says how many batches that has."""

    def __init__(self, says_length):
        super().__init__(repeat=False, batches_per_epoch=4 if says_length else None)

    def open(self, epoch, batch):
        return ((DENSE[at : at + 5], Y[at : at + 5]) for at in range(5 * batch, 20, 5))


@pytest.mark.parametrize("says_length", [True, False])
@pytest.mark.parametrize("steps", [None, 4])
def test_a_stream_of_one_epoch_is_read_in_each_epoch(says_length, steps, dense):
    history = es.fit(linear(), Once(says_length), steps_per_epoch=steps, **GIVEN)
    np.testing.assert_allclose(history.history["loss"], dense, rtol=1e-5)


class OneShot(Once):
    """It can be read once, and says so."""

    is_single_pass = True


def test_an_error_for_a_stream_that_can_be_read_once_names_what_fit_has():
    with pytest.raises(TrainingError) as refused:
        es.fit(linear(), OneShot(True), **GIVEN)
    assert "can be read only once" in str(refused.value)
    assert str(refused.value).endswith("lower epochs")
    assert "x.repeat" not in str(refused.value)


def test_sparse_shuffled_split_and_resumed(tmp_path):
    given = {"batch_size": 5, "validation_split": 0.25, "verbose": 0, "seed": 3}
    whole = es.fit(linear(), scipy_matrix(), Y, epochs=3, model_dir=tmp_path / "whole", **given)
    es.fit(linear(), scipy_matrix(), Y, epochs=1, model_dir=tmp_path / "run", **given)
    again = es.fit(linear(), scipy_matrix(), Y, epochs=3, model_dir=tmp_path / "run", **given)
    assert again.history == whole.history
    assert whole.history["loss"] == pytest.approx(es.fit(linear(), DENSE, Y, epochs=3, **given).history["loss"])
    with raises_problem(reason="other data"):
        es.fit(linear(), 2 * scipy_matrix(), Y, epochs=4, model_dir=tmp_path / "run", **given)


def ragged():
    import tensorflow as tf

    return tf.ragged.constant([list(range(1, 2 + index % 3)) for index in range(20)])


def embedding():
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    mean = layers.Lambda(lambda rows: tf.reduce_mean(rows, axis=1), output_shape=(3,))
    inputs = keras.Input((None,), dtype="int32", ragged=True)
    model = keras.Sequential([inputs, layers.Embedding(5, 3), mean, layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@only_tensorflow
def test_ragged():
    import tensorflow as tf

    theirs = embedding().fit(ragged(), Y, batch_size=5, shuffle=False, **GIVEN).history["loss"]
    ours = es.fit(embedding(), ragged(), Y, batch_size=5, shuffle=False, **GIVEN).history["loss"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    batches = tf.data.Dataset.from_tensor_slices((ragged(), Y)).batch(5)
    np.testing.assert_allclose(es.fit(embedding(), batches, **GIVEN).history["loss"], theirs, rtol=1e-5)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it has them")
def test_ragged_elsewhere_is_refused():
    with raises_problem(reason=f"ragged tensor, which the backend '{BACKEND}' does not support", remedy="pad it"):
        es.fit(linear(), ragged(), Y, **GIVEN)


def test_parts_as_plain_arrays():
    parts = sparse.on_host(scipy_matrix())
    np.testing.assert_array_equal(sparse.first_samples((parts, Y), 3)[0], DENSE[:3])
    padded = sparse.first_samples(sparse.on_host(ragged()), 3)
    np.testing.assert_array_equal(padded, [[1, 0, 0], [1, 2, 0], [1, 2, 3]])


# -- text --------------------------------------------------------------------------------------------------------------

TEXTS = np.array(["good fine", "bad awful", "nice good", "awful"] * 5)


def reader():
    keras.utils.set_random_seed(1)
    words = layers.TextVectorization(output_sequence_length=3)
    words.adapt(["good fine bad awful nice"])
    pooled = layers.GlobalAveragePooling1D()
    model = keras.Sequential([keras.Input((), dtype="string"), words, layers.Embedding(9, 4), pooled, layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@only_tensorflow
def test_text_goes_into_the_model(tmp_path):
    import tensorflow as tf

    theirs = reader().fit(tf.constant(TEXTS), Y, batch_size=5, shuffle=False, **GIVEN).history["loss"]
    batches = tf.data.Dataset.from_tensor_slices((TEXTS, Y)).batch(5)
    for x, y in ((tf.constant(TEXTS), Y), (TEXTS, Y), (TEXTS.astype(object), Y), (batches, None)):
        given = {} if y is None else {"batch_size": 5, "shuffle": False}
        ours = es.fit(reader(), x, y, **GIVEN, **given).history["loss"]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    given = {"batch_size": 5, "verbose": 0, "seed": 1, "model_dir": tmp_path / "run"}
    es.fit(reader(), TEXTS.astype(object), Y, epochs=1, **given)
    assert len(es.fit(reader(), TEXTS.astype(object), Y, epochs=3, **given).epoch) == 3


@pytest.mark.skipif(BACKEND == "tensorflow", reason="it computes with text")
def test_text_elsewhere_is_refused():
    import tensorflow as tf

    for data in ((TEXTS, Y), (tf.data.Dataset.from_tensor_slices((TEXTS, Y)).batch(5),)):
        with raises_problem(
            key="x", reason="holds text, such as b?'good fine'", remedy="TextVectorization.*on the data"
        ):
            es.fit(linear(), *data, **GIVEN)


# -- what no model can use ---------------------------------------------------------------------------------------------


def classifier(loss="sparse_categorical_crossentropy"):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, "softmax")])
    model.compile("sgd", loss)
    return model


def frame():
    pd = pytest.importorskip("pandas")
    return pd.DataFrame({"a": DENSE[:, 0], "city": ["Rome"] * 20})


def named():
    return np.array(["cat", "dog"] * 10)


@pytest.mark.parametrize(
    ("fields", "data", "loss"),
    [
        ({"key": "y", "reason": "holds text, such as 'cat'", "remedy": "np.unique"}, lambda: (DENSE, named()), "mse"),
        (
            {"key": "y", "reason": "holds text, such as 'cat'", "remedy": "np.unique"},
            lambda: (DENSE, named().astype(object)),
            "mse",
        ),
        (
            {"key": "x", "reason": "the column 'city' of the DataFrame .*'Rome'", "remedy": "get_dummies"},
            lambda: (frame(), Y),
            "mse",
        ),
        ({"key": "x", "reason": "lists of Python numbers", "remedy": "np.array"}, lambda: (DENSE.tolist(), Y), "mse"),
        ({"key": "y", "reason": "lists of Python numbers", "remedy": "np.array"}, lambda: (DENSE, Y.tolist()), "mse"),
        (
            {"key": "x", "reason": "holds Python objects", "remedy": "pad_sequences"},
            lambda: (np.array([[1], [1, 2]] * 10, object), Y),
            "mse",
        ),
        ({"key": "x, y", "reason": "x has 20, y has 7"}, lambda: (DENSE, Y[:7]), "mse"),
        (
            {"key": "x", "reason": "the samples have the shape .4,., but the model was built for .6,."},
            lambda: (DENSE[:, :4], Y),
            "mse",
        ),
        (
            {"key": "y", "reason": "the labels have 3 numbers", "remedy": "argmax"},
            lambda: (DENSE, np.eye(3)[CLASSES]),
            None,
        ),
        (
            {"key": "y", "reason": "the labels are one number", "remedy": "to_categorical"},
            lambda: (DENSE, CLASSES),
            "categorical_crossentropy",
        ),
    ],
)
def test_what_to_do_is_in_the_first_line(fields, data, loss):
    with raises_problem(**fields) as refused:
        es.fit(classifier(loss or "sparse_categorical_crossentropy"), *data(), **GIVEN)
    assert "\x1b" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_wrong_shape_of_one_of_several_inputs():
    inputs = [keras.Input((6,), name="b"), keras.Input((2,), name="a")]
    model = keras.Model(inputs, layers.Dense(1)(layers.concatenate(inputs)))
    model.compile("sgd", "mse")
    with raises_problem(key="x", reason=r"the samples have the shape \(3,\), but .* for \(2,\) at its input 'a'"):
        es.fit(model, {"a": DENSE[:, :3], "b": DENSE}, Y, **GIVEN)


def test_wrong_labels_of_batches():
    def batches():
        yield DENSE, np.eye(3)[CLASSES]

    with raises_problem(key="y", reason="the labels have 3 numbers"):
        es.fit(classifier(), batches, **GIVEN)


def test_nan_is_reported_once(caplog):
    es.fit(linear(), DENSE * np.nan, Y, batch_size=5, epochs=3, verbose=1)
    warned = [record.getMessage() for record in caplog.records if "training loss is nan" in record.getMessage()]
    assert len(warned) == 1
    assert "the training loss is nan at step" in warned[0]


def test_batch_size_beside_batches_is_said():
    with pytest.warns(UserWarning, match="batch_size=3 is not used: the Batches makes its own batches"):
        es.fit(linear(), Batches(), batch_size=3, verbose=0)


def test_a_model_of_sparse_sums():
    """A step of the model's own gets sparse tensors, not their parts."""

    class Summing(keras.Model):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(6, 1), initializer="ones")

        def call(self, x):
            return ops.matmul(x, self.scale)

    model = Summing()
    model.compile("sgd", "mse")
    assert es.fit(model, scipy_matrix(), Y, verbose=0).history["loss"][0] == pytest.approx(0, abs=1e-6)
