"""`task.init_checkpoint`: every supported format, weights that match, and those that do not."""

import os
import shutil
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import everstep
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.engine import state
from everstep.export.model_export import export_all
from everstep.export.saved_model import export_saved_model
from everstep.task.config import TaskConfig
from everstep.task.initial.loading import load
from everstep.task.initial.matching import model_weights
from everstep.testing import models
from everstep.testing.problems import raises_problem
from everstep.testing.tasks import seeded

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(8, 6, 6, 1)).astype("float32")


def late() -> keras.Model:
    model = models.LateModel()
    model(np.zeros((1, 4), "float32"))
    return model


def net(head: str = "head", classes: int = 1, extra: bool = False) -> keras.Model:
    inputs = keras.Input((6, 6, 1))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3)(inputs))
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    x = layers.Dense(4, name="inserted")(x) if extra else x
    x = layers.Dense(4, "tanh", name="features")(x)
    return keras.Model(inputs, layers.Dense(classes, name=head)(layers.Dense(4)(x)))


def values(model: keras.Model) -> dict[str, np.ndarray]:
    return {name: keras.ops.convert_to_numpy(variable.value) for name, variable in model_weights(model).items()}


def same(model: keras.Model, source: keras.Model) -> bool:
    ours, theirs = values(model), values(source)
    return list(ours) == list(theirs) and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def save_checkpoint(model: keras.Model, directory, step: int, run: str = "them") -> None:
    checkpointer = OrbaxCheckpointer(directory, run=run)
    held = {key: keras.ops.convert_to_numpy(v) for key, v in state.collect({"model": model}).items()}
    checkpointer.save(step, held | {"optimizer/iteration": np.int64(7)}, {"step": step})
    checkpointer.close()


@pytest.fixture(scope="module")
def source() -> keras.Model:
    model = seeded(net, 5)
    for weight in model.weights:  # moving averages, too, so that no weight has its initial value
        weight.assign(np.random.default_rng(len(weight.path)).normal(size=weight.shape))
    return model


@pytest.fixture(scope="module")
def forms(source, tmp_path_factory):
    """One model in every format that Keras and Everstep write."""
    root = tmp_path_factory.mktemp("forms")
    source.save_weights(root / "a.weights.h5")
    (root / "run").mkdir()
    save_checkpoint(source, root / "run" / "checkpoints", 3)
    export_all(source, root / "run" / "export", X)
    source.save(root / "a.keras")
    for name in ("one/only.keras", "two/x.keras", "two/y.keras"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / "a.keras", root / name)
    if keras.backend.backend() == "tensorflow":
        tf.train.CheckpointManager(tf.train.Checkpoint(model=source), root / "tf", 1).save()
    return root


# PyTorch cannot write a SavedModel; but every backend reads SavedModels and TensorFlow checkpoints.
SAVED_MODELS = [] if keras.backend.backend() == "torch" else ["run/export/saved_model"]
RUN_FORMS = ["run", "run/checkpoints", "run/checkpoints/3", "run/export", *SAVED_MODELS]
FORMS = ["a.weights.h5", "a.keras", *RUN_FORMS, "one", "tf", "tf/ckpt-1", "tf/ckpt-1.index"]


@pytest.mark.parametrize("name", FORMS)
def test_every_format_gives_all_weights(forms, source, name):
    if name.startswith("tf") and keras.backend.backend() != "tensorflow":
        pytest.skip("Keras saves TensorFlow checkpoints on TensorFlow alone")
    model = seeded(net, 6)
    seeds = [keras.ops.convert_to_numpy(v) for v in model.variables if "seed" in v.path]
    report = load(model, str(forms / name))
    assert same(model, source)
    assert report.matched == tuple(model_weights(model))
    assert report.is_complete
    assert report.unexpected == ()
    for before, variable in zip(seeds, (v for v in model.variables if "seed" in v.path), strict=True):
        np.testing.assert_array_equal(before, np.asarray(variable.value))


@pytest.mark.parametrize("build", [*models.MODELS.values(), models.linear, late])
def test_names_are_the_keys_of_checkpoints(build):
    build()  # so that Keras gives other numbers to the next one
    model = build()
    keyed = state.collect({"model": model})
    weights = {id(weight) for weight in model.weights}
    assert {key for key, v in keyed.items() if id(v) in weights} == {f"model/{name}" for name in model_weights(model)}


def test_a_new_head_keeps_its_own_weights(forms, source, caplog):
    has_names = keras.backend.backend() == "tensorflow"  # JAX exports variables by their last names alone
    for name in ("a.keras", "run", *(SAVED_MODELS if has_names else [])):
        model = seeded(lambda: net("new_head", 3), 6)
        before = values(model)
        caplog.clear()
        report = load(model, str(forms / name))
        assert len(report.matched) == 10
        assert {*report.missing, *(one.name for one in report.mismatched)} == {"new_head/kernel", "new_head/bias"}
        for weight in before:
            expected = before[weight] if weight.startswith("new_head") else values(source)[weight]
            np.testing.assert_array_equal(values(model)[weight], expected)
        assert "task.init_checkpoint: 10 of the model's 12 weights come from" in caplog.text
        assert "new_head/kernel" in caplog.text


def test_a_head_of_another_shape_is_reported_with_both_shapes(forms):
    report = load(net("head", 3), str(forms / "run"))
    assert [str(one) for one in report.mismatched] == [
        "head/kernel (here (4, 3), there (4, 1))",
        "head/bias (here (3,), there (1,))",
    ]
    assert report.as_dict()["mismatched"][0] == {"name": "head/kernel", "here": [4, 3], "there": [4, 1]}


def test_layers_match_by_name_if_another_is_inserted(forms, source):
    model = net(extra=True)
    report = load(model, str(forms / "a.weights.h5"))
    assert report.missing == ("inserted/kernel", "inserted/bias")
    np.testing.assert_array_equal(values(model)["features/kernel"], values(source)["features/kernel"])
    np.testing.assert_array_equal(values(model)["dense/kernel"], values(source)["dense/kernel"])


def test_keras_2_checkpoints_match_by_object_or_by_name(tmp_path):
    source = seeded(late, 5)
    inner = {name: tf.Module(name) for name in ("hidden", "out")}
    for layer in (source.hidden, source.out):
        part = inner["hidden" if layer is source.hidden else "out"]
        part.kernel, part.bias = (
            tf.Variable(keras.ops.convert_to_numpy(v), name="x") for v in (layer.kernel, layer.bias)
        )
    root = tf.Module()
    root.hidden, root.out = inner["hidden"], inner["out"]
    tf.train.Checkpoint(model=root, optimizer=tf.Module(), global_step=tf.Variable(3)).write(str(tmp_path / "ckpt-3"))
    by_order = tf.Module()
    for number, layer in enumerate((source.hidden, source.out)):
        part = tf.Module()
        part.kernel, part.bias = (
            tf.Variable(keras.ops.convert_to_numpy(v), name="x") for v in (layer.kernel, layer.bias)
        )
        setattr(by_order, f"layer_with_weights-{number}", part)
    tf.train.Checkpoint(by_order).write(str(tmp_path / "functional"))
    named = {
        f"late/dense_{n + 8}/{v.name}": v for n, layer in enumerate((source.hidden, source.out)) for v in layer.weights
    }
    variables = {
        f"v{i}": tf.Variable(keras.ops.convert_to_numpy(v), name=name) for i, (name, v) in enumerate(named.items())
    }
    tf.train.Checkpoint(**variables).write(str(tmp_path / "named"))
    for name, build in {"ckpt-3": late, "functional": models.mlp, "named": models.mlp}.items():
        model = seeded(build, 6)
        report = load(model, str(tmp_path / name))
        assert report.is_complete
        assert report.unexpected == ()
        for one, other in zip(model.weights, source.weights, strict=True):
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one.value, other.value)))


@pytest.mark.skipif(not SAVED_MODELS, reason="PyTorch cannot write a SavedModel")
def test_exported_subclassed_models_match_by_order(tmp_path):
    source = seeded(late, 5)
    export_saved_model(source, tmp_path / "exported", np.zeros((2, 4), "float32"))
    model = seeded(late, 6)
    assert load(model, str(tmp_path / "exported")).is_complete
    assert same(model, source)


def test_a_compiled_models_optimizer_starts_at_zero(tmp_path):
    def compiled():
        model = models.mlp()
        model.compile("adam", "mse", metrics=["mae"])
        return model

    source, model = seeded(compiled, 5), seeded(compiled, 6)
    source.fit(*models.samples(source, 32), epochs=1, verbose=0)
    source.save(tmp_path / "trained.keras")
    model.optimizer.build(model.trainable_variables)
    report = load(model, str(tmp_path / "trained.keras"))
    assert same(model, source)
    assert report.unexpected == ()
    assert int(model.optimizer.iterations) == 0
    assert not any(np.any(keras.ops.convert_to_numpy(v)) for v in model.optimizer._momentums)


def test_layers_load_with_their_own_code(tmp_path):
    """A Normalization layer recomputes its constants from the loaded statistics."""

    def normalized():
        return keras.Sequential([keras.Input((3,)), layers.Normalization(), layers.Dense(1)])

    source, model = seeded(normalized, 5), seeded(normalized, 6)
    x = np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 3.5]], "float32")
    source.layers[0].adapt(x)
    source.save_weights(tmp_path / "a.weights.h5")
    assert load(model, str(tmp_path / "a.weights.h5")).is_complete
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (model(x), source(x))))


def test_bfloat16_keeps_its_bits(tmp_path):
    def half():
        return keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="bfloat16")])

    source, model = seeded(half, 5), seeded(half, 6)
    source.save_weights(tmp_path / "a.weights.h5")
    assert load(model, str(tmp_path / "a.weights.h5")).is_complete
    assert same(model, source)


def test_the_newest_good_checkpoint_of_a_run(tmp_path, caplog):
    old, new, model = seeded(models.mlp, 1), seeded(models.mlp, 2), seeded(models.mlp, 3)
    save_checkpoint(old, tmp_path / "checkpoints", 5)
    save_checkpoint(new, tmp_path / "checkpoints", 10)
    assert load(model, str(tmp_path)).path.endswith("10")
    assert same(model, new)
    (tmp_path / "checkpoints" / "10" / "parts" / "0" / "data").write_bytes(b"other")
    assert load(model, str(tmp_path)).path.endswith("5")
    assert same(model, old)
    assert "10 is damaged" in caplog.text
    assert (tmp_path / "checkpoints" / "10").is_dir()  # a checkpoint of another run is never moved
    with raises_problem(key="task.init_checkpoint", reason="contains no usable checkpoint: 10"):
        load(model, str(tmp_path / "checkpoints" / "10"))


WRONG = {
    "nowhere": {"reason": "no such file or directory"},
    "nowhere.keras": {"reason": "no such file or directory"},
    "text.txt": {"reason": "holds no weights", "remedy": "expected a .keras or .weights.h5 file"},
    "empty": {"reason": "holds no weights"},
    "two": {"reason": r"several files with weights \(x.keras, y.keras\)", "remedy": "specify one of them"},
    "note": {"reason": "names 'ckpt-9', which does not exist"},
    "broken.keras": {"reason": "cannot be read"},
    "broken.weights.h5": {"reason": "cannot be read"},
    "broken": {"reason": "cannot be read"},
}


@pytest.mark.parametrize("name", WRONG)
def test_paths_that_cannot_be_loaded(forms, tmp_path, name):
    for folder in ("empty", "note"):
        (tmp_path / folder).mkdir()
    (tmp_path / "note" / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"\n')
    for file in ("text.txt", "broken.keras", "broken.weights.h5", "broken.index"):
        (tmp_path / file).write_text("nothing")
    shutil.copytree(forms / "two", tmp_path / "two")
    model = seeded(models.mlp)
    before = values(model)
    with raises_problem(key="task.init_checkpoint", **WRONG[name]):
        load(model, str(tmp_path / name))
    assert all(np.array_equal(before[key], value) for key, value in values(model).items())


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "run", *SAVED_MODELS])
def test_files_without_a_matching_weight(forms, name):
    model = keras.Sequential([keras.Input((9,)), layers.Dense(11, name="other")])
    before = values(model)
    with raises_problem(key="task.init_checkpoint", reason="does not fit the model.*other/kernel"):
        load(model, str(forms / name))
    np.testing.assert_array_equal(before["other/kernel"], values(model)["other/kernel"])


class Fresh(everstep.Task):
    def build_model(self):
        return models.mlp(dropout=0.0)

    def build_inputs(self, params, input_context=None):
        return models.samples(models.mlp(), 64)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean((labels - model_outputs) ** 2)


def test_a_run_starts_from_another_and_counts_from_zero(tmp_path):
    def run(name, steps, **task):
        params = everstep.ExperimentConfig()
        settings = {"train_steps": steps, "steps_per_loop": 2, "checkpoint_interval": 2}
        rate = {"learning_rate": {"type": "constant", "constant": {"learning_rate": task.pop("rate", 0.1)}}}
        params.override({"trainer": {**settings, "optimizer_config": {"optimizer": {"type": "sgd"}, **rate}}})
        params.task = TaskConfig(**task)
        fresh = Fresh(params.task)
        model, _ = everstep.run_experiment(
            fresh, params, tmp_path / name, "train", export=False, verbose=False, save_summary=False
        )
        return values(model)

    first = run("first", 4)
    second = run("second", 2, init_checkpoint=str(tmp_path / "first"), rate=0.0)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert OrbaxCheckpointer(tmp_path / "second" / "checkpoints").restore()[1]["step"] == 2
    shutil.rmtree(tmp_path / "first")
    third = run("second", 4, init_checkpoint=str(tmp_path / "first"), rate=0.0)  # not read: the run has a checkpoint
    assert all(np.array_equal(first[name], third[name]) for name in first)


def test_without_tensorflow_its_checkpoints_name_the_extra(tmp_path):
    code = """
        import importlib.machinery, sys

        class Without(importlib.machinery.PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                return None if name.partition(".")[0] == "tensorflow" else super().find_spec(name, path, target)

        sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Without
        from everstep.data.tf_variables import TfVariables
        try:
            TfVariables("ckpt-1")
        except ValueError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env={**os.environ}, cwd=tmp_path
    )
    assert "[tensorflow]'" in done.stdout, done.stderr
