import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.engine import state as states
from everstep.errors import TrainingError, UsageError
from everstep.export import ExportModule, export
from everstep.export.model_export import load_checkpoint
from everstep.testing.problems import raises_problem

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch cannot write a SavedModel"),
    # NumPy 2 deprecates how Keras's variables convert themselves.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 6, 6, 1)).astype("uint8")
PNGS = np.array([tf.io.encode_png(image).numpy() for image in PIXELS], dtype=object)


def classifier() -> keras.Model:
    """Augments, normalizes over the batch, and has an optimizer with slots: none of this may show in an export."""
    layers = [
        keras.layers.RandomTranslation(0.3, 0.3),
        keras.layers.RandomFlip(),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(4),
    ]
    model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def dense_model() -> keras.Model:
    return keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(4)])


def decoded(strings):
    def one(string):
        image = tf.ensure_shape(tf.io.decode_png(string, channels=1), (6, 6, 1))
        return tf.cast(image, tf.float32) / 255.0

    return tf.map_fn(one, strings, fn_output_signature=tf.float32)


def scaled(pixels):
    return ops.cast(pixels, "float32") / 255.0


def probabilities(logits):
    return {"probabilities": ops.softmax(logits), "classes": ops.argmax(logits, axis=-1)}


def signature_of(directory: str, key: str = "serving_default"):
    loaded = tf.saved_model.load(directory)
    return lambda **inputs: loaded.signatures[key](**{name: tf.constant(value) for name, value in inputs.items()})


@pytest.mark.daily("jax")
def test_plain_tensorflow_gives_the_outputs_of_predict(tmp_path):
    model = classifier()
    module = ExportModule(None, model, preprocessor=scaled, postprocessor=probabilities)
    directory = export(module, ["serve"], tmp_path / "versions", samples={"serve": PIXELS})
    answer = _outputs_in_a_fresh_process(tmp_path, directory, PIXELS)
    expected = keras.ops.convert_to_numpy(ops.softmax(model.predict(PIXELS / np.float32(255), verbose=0)))
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=0, atol=1e-5)
    assert answer["classes"] == expected.argmax(axis=-1).tolist()
    assert not [name for name in answer["variables"] if "adam" in name or "momentum" in name or "optimizer" in name]
    # Exported variables have numbers for names; but what the optimizer keeps of the kernel has other values.
    assert answer["kernels"]
    for kernel in answer["kernels"]:
        np.testing.assert_array_equal(np.float32(kernel), model.get_layer(index=-1).get_weights()[0])
    assert not answer["everstep"]


def _outputs_in_a_fresh_process(tmp_path: Path, directory: str, inputs: np.ndarray) -> dict:
    np.save(tmp_path / "inputs.npy", inputs)
    code = f"""
        import json, sys
        import numpy as np, tensorflow as tf
        signature = tf.saved_model.load({directory!r}).signatures["serving_default"]
        outputs = signature(inputs=tf.constant(np.load({str(tmp_path / "inputs.npy")!r})))
        answer = {{name: value.numpy().tolist() for name, value in outputs.items()}}
        stored = tf.train.load_checkpoint({directory + "/variables/variables"!r})
        answer["variables"] = list(stored.get_variable_to_shape_map())
        kernels = [name for name, shape in stored.get_variable_to_shape_map().items() if shape == [36, 4]]
        answer["kernels"] = [stored.get_tensor(name).tolist() for name in kernels]
        answer["everstep"] = "everstep" in sys.modules
        print(json.dumps(answer))
    """
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class TwoWays(ExportModule):
    """A module as Model Garden's users write them: TensorFlow functions around the model."""

    @tf.function
    def serve(self, images, offset):
        return {"logits": self.inference_step(images + offset)}

    @tf.function
    def serve_encoded(self, encoded):
        return {"logits": self.inference_step(decoded(encoded))}

    def get_inference_signatures(self, function_keys):
        images = tf.TensorSpec([None, 6, 6, 1], tf.float32)
        offset = tf.TensorSpec([None, 1, 1, 1], tf.float32, name="shift")
        functions = {
            "serve": lambda: self.serve.get_concrete_function(images=images, offset=offset),
            "serve_encoded": lambda: self.serve_encoded.get_concrete_function(tf.TensorSpec([None], tf.string)),
        }
        return {key: functions[name]() for name, key in function_keys.items()}


def test_several_signatures_with_strings_and_a_custom_inference_step(tmp_path):
    model = dense_model()
    module = TwoWays(None, model, lambda inputs, model: 2 * model(inputs, training=False))
    keys = {"serve": "serving_default", "serve_encoded": "encoded"}
    directory = export(module, keys, tmp_path, samples={"serve_encoded": PNGS})
    expected = 2 * model.predict(PIXELS / np.float32(255), verbose=0)
    encoded = signature_of(directory, "encoded")(encoded=PNGS)["logits"]
    np.testing.assert_allclose(encoded, expected, atol=1e-5)
    images, shift = (PIXELS / np.float32(255)) - 1, np.ones((3, 1, 1, 1), "float32")
    np.testing.assert_allclose(signature_of(directory)(images=images, shift=shift)["logits"], expected, atol=1e-5)


@pytest.mark.full
def test_preprocessing_as_layers_with_weights_and_tables(tmp_path):
    normalization = keras.layers.Normalization()
    normalization.adapt(PIXELS.astype("float32"))
    model = dense_model()
    directory = export(
        ExportModule(None, model, preprocessor=normalization, postprocessor=keras.layers.Softmax()),
        ["serve"],
        tmp_path / "numbers",
        samples={"serve": PIXELS.astype("float32")},
    )
    expected = ops.softmax(model.predict(keras.ops.convert_to_numpy(normalization(PIXELS)), verbose=0))
    answer = signature_of(directory)(inputs=PIXELS.astype("float32"))["output_0"]
    np.testing.assert_allclose(answer, keras.ops.convert_to_numpy(expected), atol=1e-5)
    words = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 3)])
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
    text = np.array([["a", "c"], ["b", "?"]], dtype=object)
    module = ExportModule(None, words, preprocessor=lambda x: tf.cast(lookup(x), tf.int32))
    module.lookup = lookup.lookup_table
    directory = export(module, ["serve"], tmp_path / "words", samples={"serve": text})
    embedded = words.predict(np.array([[1, 3], [2, 0]]), verbose=0)
    np.testing.assert_allclose(signature_of(directory)(inputs=text)["output_0"], embedded, atol=1e-6)


def test_every_export_is_a_new_version(tmp_path):
    module = ExportModule(None, dense_model())
    directories = [export(module, {"serve": "serving_default"}, tmp_path) for _ in range(2)]
    versions = [int(Path(directory).name) for directory in directories]
    assert versions == sorted(set(versions))
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(version) for version in versions]


def test_a_directory_with_other_files_is_not_replaced(tmp_path):
    module = ExportModule(None, dense_model())
    assert export(module, ["serve"], tmp_path / "model", timestamped=False) == str(tmp_path / "model")
    assert export(module, ["serve"], tmp_path / "model", timestamped=False) == str(tmp_path / "model")
    with pytest.raises(UsageError) as error:
        export(module, ["serve"], tmp_path, timestamped=False)
    assert (error.value.key, error.value.received) == ("directory", str(tmp_path))


class Counting(ExportModule):
    """Its outputs change each time the Python function is called."""

    calls = 0

    def serve(self, inputs):
        self.calls += 1
        return self.inference_step(inputs) + float(self.calls)


def test_an_export_with_other_outputs_is_refused_and_removed(tmp_path):
    with raises_problem(
        TrainingError,
        key="signature",
        received="serving_default",
        reason="does not have the outputs of the trained model",
    ):
        export(Counting(None, dense_model()), ["serve"], tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("keys", "received", "remedy"),
    [
        (["serve", "other"], ["serve", "other"], "pass signatures: {'serve': …, 'other': …}"),
        ([], [], "pass signatures: {'serve': …}"),
        (["srve"], "srve", "did you mean 'serve'?"),
        ({"serve": "a", "get_inference_signatures": "a"}, {"serve": "a", "get_inference_signatures": "a"}, ""),
    ],
)
def test_unusable_function_keys(keys, received, remedy, tmp_path):
    with pytest.raises(UsageError) as error:
        export(ExportModule(None, dense_model()), keys, tmp_path / "new")
    assert (error.value.key, error.value.received, error.value.remedy) == ("function_keys", received, remedy)
    assert not list(tmp_path.iterdir())


def test_string_inputs_need_a_sample(tmp_path):
    string = tf.TensorSpec([None], tf.string)
    module = ExportModule(None, dense_model(), preprocessor=decoded, input_signature=string)
    with raises_problem(key="samples", remedy=r"samples=\{'serve': …\}"):
        export(module, ["serve"], tmp_path / "new")
    with raises_problem(key="samples", reason="the inputs of 'serve' are unknown"):
        export(ExportModule(None, dense_model(), preprocessor=decoded), ["serve"], tmp_path / "new")
    assert not list(tmp_path.iterdir())


def save_checkpoint(model: keras.Model, directory: Path) -> None:
    state = {key: keras.ops.convert_to_numpy(v) for key, v in states.collect({"model": model}).items()}
    checkpointer = OrbaxCheckpointer(directory)
    checkpointer.save(7, state | {"optimizer/iterations": np.asarray(7)}, {"step": 7})
    checkpointer.close()


def test_weights_come_from_a_checkpoint(tmp_path):
    trained, fresh = dense_model(), dense_model()
    save_checkpoint(trained, tmp_path / "run" / "checkpoints")
    images = PIXELS / np.float32(255)
    expected = trained.predict(images, verbose=0)
    for place in ("run/checkpoints", "run/checkpoints/7"):
        fresh.set_weights([np.zeros_like(weight) for weight in fresh.get_weights()])
        load_checkpoint(fresh, tmp_path / place)
        np.testing.assert_array_equal(fresh.predict(images, verbose=0), expected)
    fresh.set_weights([np.zeros_like(weight) for weight in fresh.get_weights()])
    directory = export(ExportModule(None, fresh), ["serve"], tmp_path / "out", tmp_path / "run")
    np.testing.assert_allclose(signature_of(directory)(inputs=images)["output_0"], expected, atol=1e-5)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    save_checkpoint(dense_model(), tmp_path / "run" / "checkpoints")
    other = ExportModule(None, keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    with raises_problem(key="checkpoint_path", reason="^does not fit the model"):
        export(other, ["serve"], tmp_path / "out", tmp_path / "run")
    with raises_problem(key="checkpoint_path", received=str(tmp_path / "nowhere"), reason="no such file"):
        export(other, ["serve"], tmp_path / "out", tmp_path / "nowhere")
    layers = [keras.layers.Flatten(), keras.layers.Dense(4), keras.layers.Dense(2)]
    larger = keras.Sequential([keras.Input((6, 6, 1)), *layers])
    with raises_problem(key="checkpoint_path", reason="^lacks weights of the model"):
        export(ExportModule(None, larger), ["serve"], tmp_path / "out", tmp_path / "run")
    assert not (tmp_path / "out").exists()


def test_a_preprocessor_that_fails_is_reported(tmp_path):
    def broken(inputs):
        raise RuntimeError("a broken preprocessor")

    module = ExportModule(None, dense_model(), preprocessor=broken)
    with pytest.raises((UsageError, RuntimeError), match="a broken preprocessor"):
        export(module, ["serve"], tmp_path / "new", samples={"serve": PIXELS})
    assert not list(tmp_path.iterdir())
