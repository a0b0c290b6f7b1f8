"""`everstep.predict`: the model's outputs as arrays, for data in memory and in files."""

import keras
import numpy as np
import pytest
from tests.trained.predict_models import CLASSES, samples, train, write_table

import everstep
from everstep.errors import UsageError
from everstep.export import export_model
from everstep.testing.problems import raises_problem
from everstep.trained.inputs import MemoryArrays, Spec

# On the others, daily, test_predict.py: what predicts is the same.
pytestmark = [pytest.mark.backend, pytest.mark.daily("torch")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("predict_function") / "run"
    train(directory)
    return directory


@pytest.fixture(scope="module")
def expected(run):
    """The outputs of the exported model, by Keras itself."""
    return keras.saving.load_model(run / "export" / "model.keras").predict(samples(20)[0], verbose=0)


def two_inputs_and_outputs():
    a, b = keras.Input((2,), name="a"), keras.Input((3,), dtype="int32", name="b")
    total = keras.layers.Dense(1, name="total")(keras.layers.Concatenate()([a, keras.ops.cast(b, "float32")]))
    return keras.Model([a, b], [total, keras.layers.Dense(2, name="pair")(a)])


def test_a_run_directory_and_an_array(run, expected):
    found = everstep.predict(run, samples(20)[0])
    assert found.shape == (20, CLASSES)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 7, 20, 256])
def test_the_batch_size_does_not_matter(run, expected, batch_size):
    found = everstep.predict(str(run), samples(20)[0], batch_size=batch_size)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_exported_file_and_a_model_in_memory(run, expected):
    path = run / "export" / "model.keras"
    for model in (path, keras.saving.load_model(path)):
        np.testing.assert_allclose(everstep.predict(model, samples(20)[0]), expected, rtol=1e-5)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch cannot write a SavedModel")
def test_a_saved_model(run, expected, tmp_path):
    (saved_model,) = export_model(run, tmp_path, formats="saved_model")
    found = everstep.predict(saved_model, samples(20)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_dict_of_arrays_with_ids_and_labels(run, expected):
    x, y = samples(20)
    found = everstep.predict(run, {"points": x, "id": np.arange(20), "label": y}, without=["label"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_tensors_of_the_backend_and_lists(run, expected):
    x, _ = samples(20)
    for inputs in (keras.ops.convert_to_tensor(x), x.tolist()):
        np.testing.assert_allclose(everstep.predict(run, inputs), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["in.npy", "in.npz", "in.csv", "in.parquet"])
def test_files(run, expected, tmp_path, name):
    x, _ = samples(20)
    if name.startswith("in.np"):
        np.save(tmp_path / name, x) if name == "in.npy" else np.savez(tmp_path / name, x=x)
    else:
        write_table(tmp_path / name, x)
    for path in (tmp_path / name, str(tmp_path / name)):
        np.testing.assert_allclose(everstep.predict(run, path), expected, rtol=1e-4, atol=1e-6)


def test_several_inputs_and_outputs():
    model = two_inputs_and_outputs()
    a, b = np.ones((5, 2), "float32"), np.arange(15).reshape(5, 3)
    total, pair = model.predict([a, b], verbose=0)
    for inputs in ({"b": b, "a": a}, [a, b], (a, b)):
        found = everstep.predict(model, inputs, batch_size=2)
        assert list(found) == ["total", "pair"]
        np.testing.assert_allclose(found["total"], total, rtol=1e-5)
        np.testing.assert_allclose(found["pair"], pair, rtol=1e-5)


class Noise(keras.layers.Layer):
    """Adds random numbers, in predictions, too; counts how often it is traced."""

    def __init__(self):
        super().__init__()
        self.seed, self.calls = keras.random.SeedGenerator(1), 0

    def call(self, inputs):
        self.calls += 1
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.seed)


def test_a_model_of_one_tensor_in_memory():
    inputs, noise = keras.Input((3,)), Noise()
    model = keras.Model(inputs, keras.layers.Dense(2)(noise(inputs)))
    x = np.ones((8, 3), "float32")
    first, calls = everstep.predict(model, x, batch_size=4), noise.calls
    assert not np.array_equal(first[:4], first[4:]), "each batch draws other numbers"
    assert not np.array_equal(first, everstep.predict(model, x, batch_size=4))
    assert noise.calls == calls or keras.backend.backend() == "torch", "a second call compiles nothing"
    model.layers[-1].kernel.assign(np.zeros((3, 2)))
    assert not everstep.predict(model, x, batch_size=4).any(), "the weights are those of now"


def test_an_earlier_checkpoint(run, expected):
    x, _ = samples(20)
    steps = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    np.testing.assert_allclose(everstep.predict(run, x, checkpoint="last"), expected, rtol=1e-5)
    assert np.abs(everstep.predict(run, x, checkpoint=steps[0]) - expected).max() > 0
    with pytest.raises(UsageError) as error:
        everstep.predict(run / "export" / "model.keras", x, checkpoint="last")
    assert error.value.key == "checkpoint"


def test_errors_name_the_arguments(run, tmp_path):
    x, _ = samples(4)
    model = two_inputs_and_outputs()
    for arguments, options, key, reason in [
        ((tmp_path / "nowhere", x), {}, "run_or_model", "does not exist"),
        ((7, x), {}, "run_or_model", "not int"),
        ((model, x), {}, "inputs", "the model takes a, b"),
        ((model, {"a": x[:, :2], "b": np.zeros((3, 3), int)}), {}, "inputs", "different numbers of rows: a 4, b 3"),
        ((model, {"a": x[:, :2]}), {"checkpoint": 3}, "checkpoint", "has its own weights"),
        ((run, tmp_path / "nowhere.csv"), {}, "inputs", "does not exist"),
        ((run, x[:, :3]), {}, "inputs", r"float32\[3\] per sample, but the model's input 'points' takes float32\[4\]"),
        ((run, x[:0]), {}, "inputs", "contains no samples"),
        ((run, 3.0), {}, "inputs", "no axis for samples"),
        ((run, x), {"batch_size": 0}, "batch_size", "at least 1"),
    ]:
        with raises_problem(key=key, reason=reason) as error:
            everstep.predict(*arguments, **options)
        assert "\n" not in str(error.value)


def test_a_run_without_an_export(tmp_path):
    train(tmp_path / "run")
    for path in (tmp_path / "run" / "export").iterdir():
        path.rename(tmp_path / path.name)
    (tmp_path / "run" / "export").rmdir()
    with raises_problem(key="run_or_model", reason="has no exported model"):
        everstep.predict(tmp_path / "run", samples(2)[0])


def test_text_where_the_model_takes_numbers(run, tmp_path):
    """The message says what to pass, not to reshape the text."""
    for texts in (["what a film", "how dull"], np.array(["what a film"]), np.array(["dull"], object)):
        with raises_problem(key="inputs", reason="holds text", remedy="pass the numbers"):
            everstep.predict(run, texts)


def test_texts_for_an_input_of_one_text():
    specs = [Spec("texts", (1,), "string")]
    (_, (rows,)), *_ = MemoryArrays(["what a film", "how dull"], specs).batches(8)
    assert rows.tolist() == [["what a film"], ["how dull"]]
