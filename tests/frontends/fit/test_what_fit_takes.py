"""Unusual models and data that `model.fit` takes: `everstep.fit` trains them as well, and resumes them exactly."""

import threading

import keras
import numpy as np
import pytest
from fit_program import Cut, cutting
from keras import layers

import everstep as es
from everstep.errors import BadDataError, UsageError
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32") + (X[:, 0] > 1)
GIVEN = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}


def dense_classifier(loss="sparse_categorical_crossentropy", optimizer=None, head=(), **kwargs):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(5, name="body"), *head, layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.SGD(0.1) if optimizer is None else optimizer, loss, **kwargs)
    return model


def fit(model, *data, **given):
    return es.fit(model, *(data or (X, Y)), **{**GIVEN, **given}).history


def assert_as_keras(make, *data, **given):
    theirs = make()
    wanted = theirs.fit(*data, **{**GIVEN, **given}).history
    ours = make()
    found = fit(ours, *data, **given)
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(ours.get_weights()[0], theirs.get_weights()[0], rtol=1e-4, atol=1e-6)


def assert_resumes(make, folder):
    """Cuts a run inside its second epoch: its weights and logs end as if it had not been cut."""
    whole, resumed = make(), make()
    with cutting("nowhere"):
        wanted = fit(whole, model_dir=folder / "whole")
    with cutting("step 8"), pytest.raises(Cut):
        fit(make(), model_dir=folder / "cut")
    with cutting("nowhere"):
        assert fit(resumed, model_dir=folder / "cut") == wanted
    assert [w.tobytes() for w in resumed.get_weights()] == [w.tobytes() for w in whole.get_weights()]


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_table_with_columns_of_several_types():
    pandas = pytest.importorskip("pandas")
    columns = {"a": X[:, 0], "b": (X[:, 1] * 10).astype("int64"), "c": X[:, 2] > 0, "d": X[:, 3].astype("float64")}
    table = pandas.DataFrame(columns)
    labels = pandas.Series(Y)
    array = table.to_numpy("float32")  # what `model.fit` makes of it where Keras finds pandas: test workers hide it
    wanted = dense_classifier().fit(array, Y, validation_data=(array[:16], Y[:16]), **GIVEN).history
    found = fit(dense_classifier(), table, labels, validation_data=(table[:16], labels[:16]))
    assert found == {name: pytest.approx(values, rel=1e-5) for name, values in wanted.items()}
    whole = table.assign(a=table["b"], d=table["c"])  # integers and truth values: Keras refuses these
    nullable = whole.astype({"b": "Int64"})
    assert (
        fit(dense_classifier(), whole, labels)
        == fit(dense_classifier(), nullable, labels)
        == fit(dense_classifier(), whole.to_numpy("int64"), Y)
    )


class NoBatches(keras.utils.PyDataset):
    def __len__(self):
        return 0


@pytest.mark.parametrize(
    "empty", [(X[:0], Y[:0]), [], lambda: iter(()), NoBatches()], ids=lambda each: type(each).__name__
)
def test_empty_validation_data_evaluates_nothing(empty, caplog):
    assert fit(dense_classifier(), epochs=1, validation_data=empty) == fit(dense_classifier(), epochs=1)
    assert "nothing is evaluated" in caplog.text


def test_no_epochs_train_nothing(tmp_path):
    model = dense_classifier()
    before = model.get_weights()
    assert fit(model, epochs=0, validation_data=(X, Y), model_dir=tmp_path / "run") == {}
    assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True))
    assert fit(dense_classifier(), seed=1) == fit(
        dense_classifier(), model_dir=tmp_path / "run", seed=1, allow_change="seed"
    )
    with pytest.raises(UsageError) as refused:
        fit(dense_classifier(), epochs=0, model_dir=tmp_path / "run")
    assert refused.value.problems[0].key == "epochs"


class Changes(keras.utils.PyDataset):
    """Batches whose number changes with every epoch."""

    def __init__(self, by):
        super().__init__()
        self.size, self.by = 3, by

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]

    def on_epoch_end(self):
        self.size += self.by


def test_a_dataset_that_grows_keeps_its_first_batches():
    """As in Keras. One that shrinks is refused: a resumed run could not find its place."""
    assert fit(dense_classifier(), Changes(1), batch_size=None) == fit(dense_classifier(), X[:24], Y[:24])
    with raises_problem(BadDataError, reason="has 2 batches in epoch 1 and had 3"):
        fit(dense_classifier(), Changes(-1), batch_size=None)


@pytest.mark.full
def test_texts_for_a_task_of_keras_hub(tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    texts, labels = ["the quick brown fox", "jumped over", "the lazy dog", "hello world"] * 3, [0, 1, 0, 1] * 3
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *sorted({word for text in texts for word in text.split()})]
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=words)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=8)

    def make():
        keras.utils.set_random_seed(0)
        sizes = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "intermediate_dim": 8, "max_sequence_length": 8}
        backbone = keras_hub.models.BertBackbone(vocabulary_size=len(words), dropout=0.0, **sizes)
        model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=preprocessor, dropout=0.0)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    given = {"batch_size": 4, "validation_data": (texts[:4], labels[:4])}
    assert_as_keras(make, texts, labels, **given)
    numbers = preprocessor(texts)  # data that is preprocessed is not preprocessed again
    ready = {name: keras.ops.convert_to_numpy(array) for name, array in numbers.items()}
    assert fit(make(), ready, np.array(labels), batch_size=4) == fit(make(), np.array(texts), labels, batch_size=4)

    run, named = tmp_path / "run", {"class_names": ["dull", "fine"], "model_dir": tmp_path / "run"}
    es.fit(model := make(), np.array(texts), np.array(labels), epochs=1, verbose=0, **named, **given)
    expected = model.predict(np.array(texts[:4]), verbose=0)
    (tmp_path / "texts.csv").write_text(
        "".join(["id,review\n", *(f"r{n},{text}\n" for n, text in enumerate(texts[:4]))])
    )
    for data in (texts[:4], np.array(texts[:4]), {name: array[:4] for name, array in ready.items()}):
        np.testing.assert_allclose(es.predict(model, data), expected, atol=1e-6)
    np.testing.assert_allclose(es.predict(model, tmp_path / "texts.csv"), expected, atol=1e-6)
    assert {sample["label"] for sample in es.load(run).samples} == {"dull", "fine"}  # evaluated without another pass


# -- models ------------------------------------------------------------------------------------------------------------


class Scaled(keras.losses.Loss):
    """Weighs the loss by its own running mean, in a variable that belongs to no model."""

    def __init__(self):
        super().__init__()
        self.scale = keras.Variable(1.0, trainable=False, name="scale")

    def call(self, y_true, y_pred):
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        self.scale.assign(0.9 * self.scale + 0.1 * keras.ops.mean(loss))
        return loss * self.scale


def test_a_variable_of_the_loss_is_part_of_the_state(tmp_path):
    """On JAX, Keras drops what a loss assigns to it."""
    if keras.backend.backend() != "jax":
        assert_as_keras(lambda: dense_classifier(Scaled()), X, Y)
    assert_resumes(lambda: dense_classifier(Scaled()), tmp_path)


def test_a_variable_in_a_closure_of_the_loss_is_used_and_not_trained(caplog):
    def make():
        factor = keras.Variable(0.5)
        return dense_classifier(lambda y, p: factor * keras.losses.sparse_categorical_crossentropy(y, p))

    assert_as_keras(make, X, Y)
    assert "not trained, since the model does not hold it: variable" in caplog.text


def several(names=("body", "dense")):
    rates = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
    return keras.optimizers.MultiOptimizer(lambda variable: rates[names[0] not in variable.path])


def test_an_optimizer_of_several_resumes(tmp_path):
    assert_as_keras(lambda: dense_classifier(optimizer=several()), X, Y)
    assert_resumes(lambda: dense_classifier(optimizer=several()), tmp_path)


def test_a_changed_rate_of_one_of_several_optimizers_is_applied(tmp_path):
    def make(rate):
        parts = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), {".*body.*": keras.optimizers.SGD(rate)})
        return dense_classifier(optimizer=keras.optimizers.MultiOptimizer(parts))

    fit(make(0.1), epochs=1, model_dir=tmp_path)
    with pytest.raises(UsageError) as refused:
        fit(make(0.0), epochs=2, model_dir=tmp_path)
    assert any("optimizer" in problem.key for problem in refused.value.problems)
    kept = make(0.0)
    before = dense_classifier().get_weights()[0]
    fit(kept, epochs=2, model_dir=tmp_path, allow_change="optimizer")
    once = make(0.1)
    fit(once, epochs=1, seed=0)
    assert np.array_equal(kept.get_weights()[0], once.get_weights()[0])
    assert not np.array_equal(kept.get_weights()[0], before)


class Noise(layers.Layer):
    """Draws from Keras's global generator, as the router of a mixture of experts may."""

    def call(self, inputs, training=False):
        return inputs * keras.random.uniform((5,), 0.9, 1.1) if training else inputs


def test_the_global_seed_generator_is_part_of_the_state(tmp_path):
    """On JAX, Keras refuses unseeded draws; so do we, in one line that names the model."""
    if keras.backend.backend() == "jax":
        with pytest.raises(UsageError) as refused:
            fit(dense_classifier(head=[Noise()]))
        (problem,) = refused.value.problems
        assert problem.key == "Sequential"
        assert "SeedGenerator(1)` in its layer" in problem.remedy
        return
    assert_as_keras(lambda: dense_classifier(head=[Noise()]), X, Y)
    assert_resumes(lambda: dense_classifier(head=[Noise()]), tmp_path)


class Decides(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, "softmax")

    def call(self, inputs):
        return self.dense(inputs * float(keras.ops.sum(inputs) > 0))


def test_code_that_decides_in_python_with_run_eagerly():
    """It runs on PyTorch. Elsewhere steps are compiled, and the model is named in one line."""

    def make():
        keras.utils.set_random_seed(0)
        model = Decides()
        model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
        return model

    if keras.backend.backend() == "torch":
        assert_as_keras(make, X, Y)
        return
    with pytest.raises(UsageError) as refused:
        fit(make())
    (problem,) = refused.value.problems
    assert problem.key == "Decides"
    assert "run_eagerly" in problem.remedy


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [False, True])
def test_several_threads_train_at_once(keeps, tmp_path):
    """Each as if it were alone; afterwards Keras is as it was."""
    before = {name: getattr(keras.Variable, name) for name in ("__init__", "value", "assign")}
    epochs = 3 if keeps else 20
    alone = fit(dense_classifier(head=[layers.Dropout(0.3, seed=1)]), epochs=epochs)
    models = [dense_classifier(head=[layers.Dropout(0.3, seed=1)]) for _ in range(3)]
    found = [None] * len(models)

    def train(number):
        kept = {"model_dir": tmp_path / str(number)} if keeps else {}
        found[number] = fit(models[number], epochs=epochs, **kept)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * len(models)
    assert before == {name: getattr(keras.Variable, name) for name in before}
