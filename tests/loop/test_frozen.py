"""Runs whose models are partly frozen: what does not change is saved once, and everything else works as ever."""

import json
import logging
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import everstep as es
from everstep.checkpoint import arrays, manifest
from everstep.engine.backend import create_engine
from everstep.errors import UsageError
from everstep.loop import frozen
from everstep.run.record import read
from everstep.testing.tasks import Regression
from loop.samples import TinyTask, run, tiny_params

pytestmark = pytest.mark.backend

WIDTH = 256


class Interrupted(Exception):
    pass


class FineTuning(TinyTask):
    """A frozen body with batch normalization and dropout, LoRA on its second layer, and a new head."""

    preset = ""

    def __init__(self, init_checkpoint=""):
        super().__init__()
        self._task_config = es.TaskConfig(init_checkpoint=init_checkpoint)

    def build_model(self):
        inputs = keras.Input((4,))
        x = layers.Dense(WIDTH, activation="relu", trainable=False, name="first")(inputs)
        second = layers.Dense(WIDTH, activation="relu", name="second")
        x = second(layers.Dropout(0.1)(x))
        x = layers.BatchNormalization(name="norm")(x)
        x = layers.BatchNormalization(name="still", trainable=False)(x)
        model = keras.Model(inputs, layers.Dense(1, name="head")(x))
        second.enable_lora(8)
        return model

    def base_weights(self):
        return self.preset


class Named(FineTuning):
    preset = "presets/tiny"


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def size(folder):
    return sum(len(content) for content in files(folder).values())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run("train_and_eval", folder, FineTuning())
    return folder


def test_only_what_no_step_changes_is_frozen():
    x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
    task = FineTuning()
    engine = create_engine(task, task.build_model(), keras.optimizers.Adam())
    engine.build((x, y), (x, y))
    found = {key.removeprefix("model/") for key in engine.frozen}
    assert found == {
        "first/kernel",
        "first/bias",
        "second/kernel",
        *(f"still/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")),
    }


def test_frozen_weights_are_saved_once_and_read_with_every_checkpoint(uninterrupted):
    (place,) = (uninterrupted / "base").iterdir()
    bases = {manifest.read(uninterrupted / "checkpoints" / step).base for step in ("8", "12")}
    assert {base.digest[:16] for base in bases} == {place.name}
    assert set(arrays.read(place)[0]) >= {"model/first/kernel", "model/second/kernel"}
    state = arrays.read(uninterrupted / "checkpoints/12")[0]
    assert state["model/second/lora_kernel_a"].any()
    assert state["model/first/kernel"].shape == (4, WIDTH)
    assert "4" not in {path.name for path in (uninterrupted / "checkpoints").iterdir()}
    assert size(uninterrupted / "checkpoints/12") < size(place)


def test_a_killed_run_ends_with_the_same_bits(uninterrupted, tmp_path):
    def die(logs):
        raise Interrupted

    for until in (8, 12):
        with pytest.raises(Interrupted):
            run("train_and_eval", tmp_path / "run", FineTuning(), eval_actions=[die], train_steps=until)
    run("train_and_eval", tmp_path / "run", FineTuning())
    whole, resumed = read(uninterrupted), read(tmp_path / "run")
    assert resumed["digest"] == whole["digest"]
    assert resumed["weights_digest"] == whole["weights_digest"]
    (one,), (other,) = (list((folder / "base").iterdir()) for folder in (uninterrupted, tmp_path / "run"))
    assert one.name == other.name


PROGRAM = """
import os, sys
from loop.test_frozen import FineTuning, run
from everstep.checkpoint.orbax import OrbaxCheckpointer
if sys.argv[2] == "die":
    OrbaxCheckpointer.save = lambda *arguments, **keywords: os._exit(9)
run("train_and_eval", sys.argv[1], FineTuning())
"""


@pytest.mark.full
def test_a_kill_between_the_frozen_weights_and_the_first_checkpoint(uninterrupted, tmp_path):
    for what, code in (("die", 9), ("go on", 0)):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), what]
        ended = subprocess.run(command, cwd="tests", timeout=300)
        assert ended.returncode == code
        assert len(list((tmp_path / "run/base").iterdir())) == 1
    assert read(tmp_path / "run")["digest"] == read(uninterrupted)["digest"]


def test_the_digest_is_over_everything(uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(frozen, "SMALLEST", 1 << 40)
    run("train_and_eval", tmp_path / "run", FineTuning())
    assert not (tmp_path / "run/base").exists()
    assert manifest.read(tmp_path / "run/checkpoints/12").base is None
    assert read(tmp_path / "run")["digest"] == read(uninterrupted)["digest"]


def test_evaluation_and_initial_weights_use_it(uninterrupted, tmp_path):
    _, logs = run("train_and_eval", uninterrupted, FineTuning())
    _, again = run("eval", uninterrupted, FineTuning())
    assert again["validation_loss"] == logs["validation_loss"]
    task = FineTuning(str(uninterrupted))
    model, _ = run("train", tmp_path / "new", task, train_steps=1, steps_per_loop=1)
    kernel = model.get_layer("first").kernel
    before = arrays.read(uninterrupted / "checkpoints/12")[0]["model/first/kernel"]
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(kernel), before)
    assert not read(tmp_path / "new")["initial_weights"][0]["missing"]


def test_the_best_weights_refer_to_it(tmp_path):
    best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "validation_loss"}
    run("train_and_eval", tmp_path, FineTuning(), **best, best_checkpoint_metric_comp="lower")
    step = json.loads((tmp_path / "best/info.json").read_text())["best_ckpt_global_step"]
    found = arrays.read(tmp_path / "best" / str(step))[0]
    assert "model/first/kernel" in found
    assert size(tmp_path / "best" / str(step)) < size(tmp_path / "base")


def test_a_named_base_is_not_saved_and_the_run_resumes_on_it(uninterrupted, tmp_path):
    run("train_and_eval", tmp_path / "run", Named(), train_steps=8)
    run("train_and_eval", tmp_path / "run", Named())
    assert not (tmp_path / "run/base").exists()
    base = manifest.read(tmp_path / "run/checkpoints/12").base
    assert (base.name, base.variables) == ("presets/tiny", 7)
    assert read(tmp_path / "run")["digest"] == read(uninterrupted)["digest"]
    _, logs = run("eval", tmp_path / "run", Named())
    assert logs["validation_loss"] == run("eval", uninterrupted, FineTuning())[1]["validation_loss"]


def test_a_named_base_with_averages_of_all_weights_is_evaluated(tmp_path):
    params = tiny_params(train_steps=8)
    params.override({"trainer": {"optimizer_config": {"ema": {"trainable_weights_only": False}}}})
    _, logs = run("train_and_eval", tmp_path, Named(), params)
    _, again = run("eval", tmp_path, Named(), params)
    assert again["validation_loss"] == pytest.approx(logs["validation_loss"], rel=1e-5)


def test_another_base_is_refused_before_anything_is_trained(tmp_path):
    run("train", tmp_path, Named(), train_steps=8)
    before = files(tmp_path)

    class Other(Named):
        def build_model(self):
            model = super().build_model()
            model.get_layer("second")._kernel.assign(model.get_layer("second")._kernel * 1.5)
            return model

    for mode in ("train", "eval"):
        with pytest.raises(UsageError) as caught:
            run(mode, tmp_path, Other())
        (problem,) = caught.value.problems
        assert problem.received == "presets/tiny"
        assert manifest.read(tmp_path / "checkpoints/8").base.digest in problem.reason
    after = files(tmp_path)
    assert {name for name in before if name.startswith("checkpoints/")} <= after.keys()
    assert all(after[name] == content for name, content in before.items() if name.startswith("checkpoints/"))
    with pytest.raises(UsageError) as caught:
        run("train", tmp_path / "new", Other(str(tmp_path)))
    assert caught.value.problems[0].key == "task.init_checkpoint"


def test_other_initial_weights_than_the_named_ones_are_saved(uninterrupted, tmp_path, caplog):
    class Shifted(Named):
        def initialize(self, model):
            model.get_layer("first").kernel.assign(model.get_layer("first").kernel + 1.0)

    with caplog.at_level(logging.WARNING):
        run("train", tmp_path / "run", Shifted(), train_steps=8)
    assert "presets/tiny" in caplog.text
    assert manifest.read(tmp_path / "run/checkpoints/8").base.name == ""
    whole = run("train", tmp_path / "run", Shifted())[0]
    straight = run("train", tmp_path / "straight", Shifted())[0]
    for one, other in zip(whole.weights, straight.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other))


@pytest.mark.parametrize("task", [FineTuning, Named])
def test_a_frozen_weight_that_user_code_changes_is_noticed_and_saved(tmp_path, task, caplog):
    def thaw(trainer):
        def action(logs):
            if trainer.global_step == 12:
                kernel = trainer.model.get_layer("first").kernel
                kernel.assign(kernel * 0.5)

        return action

    def trained(folder, steps):
        params = tiny_params(train_steps=steps, steps_per_loop=4, checkpoint_interval=4)
        made = []
        actions = [lambda logs: thaw(made[0])(logs)]

        def create(params):
            made.append(es.experiment.create_trainer(params, task(), train=True, evaluate=True))
            return made[0]

        return run("train", folder, task(), params, trainer=create, train_actions=actions)[0]

    with caplog.at_level(logging.WARNING):
        model = trained(tmp_path / "run", 12)
        assert "model/first/kernel is not trainable" in caplog.text
        expected = keras.ops.convert_to_numpy(model.get_layer("first").kernel)
        own = arrays.read(tmp_path / "run/checkpoints/12")[0]
        np.testing.assert_array_equal(own["model/first/kernel"], expected)
        assert manifest.read(tmp_path / "run/checkpoints/8").base != manifest.read(tmp_path / "run/checkpoints/12").base
        resumed = trained(tmp_path / "run", 16)
        whole = trained(tmp_path / "whole", 16)
    for one, other in zip(whole.weights, resumed.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other))


def test_a_compiled_model_with_frozen_layers(tmp_path, no_export):
    def compiled():
        keras.utils.set_random_seed(0)
        model = FineTuning().build_model()
        model.compile("adam", "mse")
        return model

    x, y = np.ones((64, 4), "float32"), np.zeros((64, 1), "float32")
    model = compiled()
    es.fit(model, x, y, epochs=2, verbose=0, model_dir=str(tmp_path / "run"))
    assert len(list((tmp_path / "run/base").iterdir())) == 1
    steps = [path for path in (tmp_path / "run/checkpoints").iterdir() if path.name.isdecimal()]
    assert all(manifest.read(path).base is not None for path in steps)
    es.fit(resumed := compiled(), x, y, epochs=4, verbose=0, model_dir=str(tmp_path / "run"))
    es.fit(whole := compiled(), x, y, epochs=4, verbose=0, model_dir=str(tmp_path / "whole"))
    for one, other in zip(whole.weights, resumed.weights, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other))


@pytest.mark.daily("torch")
def test_a_checkpoint_of_lora_is_a_fraction_of_the_whole_model(tmp_path, monkeypatch):
    """Rank 8 on every layer of a model of 4 million weights."""

    class Large(Regression):
        def build_model(self):
            model = keras.Sequential([keras.Input((4,)), *(layers.Dense(1024) for _ in range(5)), layers.Dense(1)])
            for layer in model.layers:
                layer.trainable = False
            for layer in model.layers[1:-1]:
                layer.trainable = True
                layer.enable_lora(8)
                layer.bias.trainable = False
            return model

        build_inputs = TinyTask.build_inputs

    params = {"train_steps": 1, "steps_per_loop": 1, "checkpoint_interval": 1}
    run("train", tmp_path / "lora", Large(), **params)
    monkeypatch.setattr(frozen, "SMALLEST", 1 << 40)
    run("train", tmp_path / "whole", Large(), **params)
    assert size(tmp_path / "lora/checkpoints/1") <= 0.05 * size(tmp_path / "whole/checkpoints/1")
    assert read(tmp_path / "lora")["digest"] == read(tmp_path / "whole")["digest"]
