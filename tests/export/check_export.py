"""Exports small models and prints one line per check; run with KERAS_BACKEND set by `test_export.py`."""

import contextlib
import importlib.util
import io
import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from everstep.errors import TrainingError, UsageError
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model
from everstep.testing.problems import raises_problem

ROOT = Path(sys.argv[1])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 8)).astype("float32")


@keras.saving.register_keras_serializable("check")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.noise = keras.layers.GaussianNoise(1.0, seed=1)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.dense = keras.layers.Dense(3)

    def call(self, x, training=False):
        self.calls.assign(self.calls + 1)
        return self.dense(self.noise(x, training=training)), x


@keras.saving.register_keras_serializable("check")
class Forgetful(keras.layers.Layer):
    """A layer whose scale is Python state, in neither its config nor its weights."""

    scale = 1.0

    def call(self, x):
        return x * self.scale


def model_with_random_weights():
    layers = [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    for variable in model.variables:
        variable.assign(RNG.uniform(0.5, 1.5, variable.shape))
    return model


def two_inputs():
    a, b = keras.Input((None, 4), name="a"), keras.Input((2,), dtype="int32", name="b")
    x = keras.layers.GRU(5)(a)
    y = keras.layers.Flatten()(keras.layers.Embedding(10, 3)(b))
    return keras.Model({"a": a, "b": b}, {"x": x, "y": keras.layers.Dense(2)(y)})


def check_optimizer_is_not_exported():
    import tensorflow as tf

    model = model_with_random_weights()
    export_saved_model(model, ROOT / "saved_model", X)
    export_saved_model(model, ROOT / "saved_model", X)
    loaded = tf.saved_model.load(str(ROOT / "saved_model"))
    assert len(loaded.variables) == len(model.variables)
    names = [name for name, _ in tf.train.list_variables(str(ROOT / "saved_model" / "variables" / "variables"))]
    assert not [name for name in names if "optimizer" in name or "momentum" in name]
    assert loaded.serve(tf.constant(X[:1])).shape == (1, 3)


def check_keras_file():
    export_keras(model_with_random_weights(), ROOT / "new" / "model.keras", X)
    keras.saving.load_model(ROOT / "new" / "model.keras")
    assert os.listdir(ROOT / "new") == ["model.keras"]


def check_dictionaries():
    sample = {"a": RNG.normal(size=(3, 6, 4)).astype("float32"), "b": np.ones((3, 2), np.int64)}
    export_keras(two_inputs(), ROOT / "two.keras", sample)
    export_saved_model(two_inputs(), ROOT / "two", sample)


def check_subclassed_model_is_unchanged():
    model = Subclassed()
    model(X)
    before = [keras.ops.convert_to_numpy(v) for v in model.variables]
    export_keras(model, ROOT / "sub.keras", X)
    export_saved_model(model, ROOT / "sub", X)
    after = [keras.ops.convert_to_numpy(v) for v in model.variables]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def check_half_precision():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = model_with_random_weights()
    finally:
        keras.config.set_dtype_policy("float32")
    export_keras(model, ROOT / "half.keras", X)
    export_saved_model(model, ROOT / "half", X)


def check_augmentation_is_not_exported():
    images = RNG.uniform(size=(4, 8, 8, 1)).astype("float32")
    augmented = [keras.layers.RandomTranslation(0.3, 0.3), keras.layers.RandomFlip(), keras.layers.RandomRotation(0.2)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *augmented, keras.layers.Flatten(), keras.layers.Dense(2)])
    export_saved_model(model, ROOT / "augmented", images)
    export_keras(model, ROOT / "augmented.keras", images)


def check_a_directory_with_other_files_is_kept():
    (ROOT / "mine").mkdir()
    (ROOT / "mine" / "notes.txt").write_text("keep this")
    with pytest.raises(UsageError) as error:
        export_saved_model(model_with_random_weights(), ROOT / "mine", X)
    assert (error.value.key, error.value.received) == ("directory", str(ROOT / "mine"))
    assert (ROOT / "mine" / "notes.txt").exists()


def check_a_mismatch_is_refused_and_leaves_no_file():
    layer = Forgetful()
    model = keras.Sequential([keras.Input((8,)), layer])
    layer.scale = 2.0
    path = str(ROOT / "bad.keras")
    with raises_problem(TrainingError, key="export", received=path, reason="does not have the outputs"):
        export_keras(model, ROOT / "bad.keras", X)
    assert not [path for path in ROOT.iterdir() if "bad" in path.name]


def check_unregistered_code_is_refused_with_a_remedy():
    class Local(keras.layers.Layer):
        def call(self, x):
            return x

    for layer in (Local(), keras.layers.Lambda(lambda x: x)):
        model = keras.Sequential([keras.Input((8,)), layer])
        with raises_problem(TrainingError, remedy="register_keras_serializable"):
            export_keras(model, ROOT / "local.keras", X)


def check_without_tensorflow():
    find = importlib.util.find_spec
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorflow" else find(name))
        with raises_problem(remedy=r"pip install .*\[tensorflow\]'"):
            export_saved_model(model_with_random_weights(), ROOT / "none", X)


for name, check in [(name, check) for name, check in globals().items() if name.startswith("check_")]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        check()
    assert printed.getvalue() == "", printed.getvalue()
    print(name, flush=True)
