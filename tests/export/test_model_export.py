import contextlib

import keras
import numpy as np
import pytest

from everstep.errors import UsageError
from everstep.export.comparison import same_program
from everstep.export.keras_file import export_keras
from everstep.export.model_export import evaluated_weights, export_all, sample_inputs
from everstep.task.optim.ema import ExponentialMovingAverage

pytestmark = pytest.mark.gpu


def test_random_inputs_have_the_structure_that_the_model_declares():
    named = {"a": keras.Input((None, 2), name="a"), "b": keras.Input((3,), dtype="int32", name="b")}
    outputs = keras.layers.Dense(1)(named["a"][:, 0]) + keras.ops.cast(named["b"][:, :1], "float32")
    random = sample_inputs(keras.Model(named, outputs))
    assert {name: (array.shape, array.dtype.name) for name, array in random.items()} == {
        "a": ((2, 32, 2), "float32"),
        "b": ((2, 3), "int32"),
    }
    assert sample_inputs(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])).shape == (2, 3)


def test_a_model_that_declares_no_inputs_needs_a_sample():
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(UsageError) as error:
        sample_inputs(model)
    assert error.value.key == "sample"
    assert sample_inputs(model, np.zeros((20, 3))).shape == (8, 3)


class OfTen(keras.Model):
    """Takes batches of ten samples only, as a mixture of experts may."""

    def call(self, inputs):
        return keras.ops.reshape(inputs, (10, 2))


def test_a_model_that_fails_on_the_sample_is_reported(tmp_path, caplog):
    model = OfTen()
    model(np.zeros((10, 2), "float32"))
    assert export_all(model, tmp_path / "export", np.zeros((8, 2), "float32")) == []
    assert "not exported as model.keras" in caplog.text
    assert not any("\n" in message for message in caplog.messages)


def test_the_model_has_the_averages_only_inside_the_block():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, dtype="bfloat16")])
    optimizer = ExponentialMovingAverage(keras.optimizers.SGD(0.1))
    optimizer.build(model.trainable_variables)
    for variable, average in optimizer.pairs():
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
        average.assign(np.ones(average.shape))
    trained = [keras.ops.convert_to_numpy(weight).copy() for weight in model.weights]
    with contextlib.suppress(KeyboardInterrupt), evaluated_weights(keras.optimizers.LossScaleOptimizer(optimizer)):
        assert all((keras.ops.convert_to_numpy(weight) == 1).all() for weight in model.weights)
        raise KeyboardInterrupt
    after = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
    assert all(np.array_equal(a, b) for a, b in zip(trained, after, strict=True))
    with evaluated_weights(None):
        pass


# -- a batch that is no input of the model -----------------------------------------------------------------------------

TEXTS = {"input_ids": np.zeros((20, 4), "float32"), "mask": np.ones((20, 4), "float32")}


def test_of_a_batch_the_inputs_that_the_model_names_are_taken():
    named = keras.Input((4,), name="input_ids")
    for inputs in ([named], {"input_ids": named}):
        assert list(sample_inputs(keras.Model(inputs, keras.layers.Dense(1)(named)), TEXTS)) == ["input_ids"]


def test_a_single_input_is_taken_out_of_the_batch_without_a_warning(tmp_path):
    named = keras.Input((4,), name="input_ids")
    model = keras.Model(named, keras.layers.Dense(1)(named))
    sample = sample_inputs(model, TEXTS)
    assert sample.shape == (8, 4)
    assert export_all(model, tmp_path, sample, ["keras"]) == [tmp_path / "model.keras"]


def test_an_input_that_the_batch_does_not_have_is_named_with_the_remedy():
    inputs = keras.Input((4,), name="tokens")
    with pytest.raises(UsageError) as error:
        sample_inputs(keras.Model(inputs, keras.layers.Dense(1)(inputs)), TEXTS)
    assert "'tokens'" in error.value.reason
    assert "keras.Input(…, name='input_ids')" in error.value.remedy


def test_a_model_that_cannot_be_called_is_reported_without_the_data(tmp_path, caplog):
    @keras.saving.register_keras_serializable("test_model_export")
    class Picky(keras.Model):
        def call(self, x):
            raise ValueError("expected a mask")

    model = Picky()
    model.built = True
    assert export_all(model, tmp_path / "out", {"x": np.full((8, 50), 0.123456, "float32")}) == []
    tried = [message for message in caplog.messages if "needs the package" not in message]  # without TensorFlow
    assert tried
    assert all("expected a mask" in message for message in tried)
    assert "0.123456" not in caplog.text


# -- a loaded model with the program of the trained one ----------------------------------------------------------------


@keras.saving.register_keras_serializable("test_model_export")
class Scaled(keras.layers.Layer):
    """A layer whose scale is in neither its config nor its weights."""

    scale = 1.0

    def call(self, x):
        return x * self.scale


def saved_and_loaded(model, path):
    model.save(path)
    return keras.saving.load_model(path, compile=False)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX shows a program without running it")
def test_a_loaded_model_is_known_by_its_program_and_weights(tmp_path):
    scaled = Scaled()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "relu"), keras.layers.Dropout(0.5), scaled])
    x = np.ones((2, 3), "float32")
    loaded = saved_and_loaded(model, tmp_path / "model.keras")
    assert same_program(model, loaded, x)
    scaled.scale = 2.0
    assert not same_program(model, loaded, x), "another program"
    scaled.scale = 1.0
    loaded.layers[0].bias.assign([0.0, 1e-7])
    assert not same_program(model, loaded, x), "other weights"


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the others run the model")
def test_a_keras_file_is_checked_on_jax_without_compiling_the_model(tmp_path):
    import jax

    model = keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4)])
    compiled = []

    def listen(event, seconds, **more):
        if "backend_compile" in event:
            compiled.append(more.get("fun_name"))

    saved_and_loaded(model, tmp_path / "warm.keras")
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        export_keras(model, tmp_path / "model.keras", np.ones((2, 5, 3), "float32"))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
