"""`Training` in one process: what it builds, trains, returns and leaves behind; and what it refuses."""

import csv
import functools
import json
import logging
import os
import re
import signal
from pathlib import Path

import keras
import numpy as np
import pytest

from everstep.cli.commands import load
from everstep.data.arrays import ArrayStream
from everstep.errors import TrainingError, UsageError
from everstep.export.model_export import serving_format
from everstep.training import Training

pytestmark = pytest.mark.backend

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
TENSORFLOW = keras.backend.backend() == "tensorflow"
SERVED = serving_format()[0]


def build(activation="softmax"):
    inputs = keras.Input((4,), name="x")
    return keras.Model(inputs, keras.layers.Dense(2, activation)(inputs))


def made(job_dir, cls=Training, **changes):
    given = {"build_model_func": build, "optimizer": "adam", "loss": "sparse_categorical_crossentropy"}
    return cls(**{**given, "job_dir": job_dir, "metrics": ["accuracy"], "verbose": False, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A job of two epochs with artifacts."""
    root = tmp_path_factory.mktemp("finished")
    optimizer = keras.optimizers.Adam(0.01)
    training = made(root / "job", artifacts_dir=root / "artifacts", optimizer=optimizer)
    assert training.model.optimizer is optimizer
    return training, training.run_train((X, Y), (X, Y), 2)


def test_layout(finished):
    training, history = finished
    job, artifacts = Path(training.job_dir), Path(training.artifacts_dir)
    assert json.loads((job / "job_meta.json").read_text()) == {"last_epoch": 2, "last_checkpoint": "00002"}
    assert sorted(path.name for path in (job / "epochs").iterdir()) == ["00001.json", "00002.json"]
    assert json.loads((job / "run.json").read_text())["status"] == "finished"
    assert (job / "history.csv").read_text().startswith("step,")
    assert sorted(path.name for path in artifacts.iterdir()) == sorted(["history.csv", SERVED])
    rows = list(csv.DictReader((artifacts / "history.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [float(row["loss"]) for row in rows] == history.history["loss"]
    assert float(training.model.optimizer.learning_rate) == pytest.approx(0.01)


def test_finished_job_returns_all_and_mends_its_files(finished):
    """Run again there is nothing to train: the whole history comes back, and what was lost is there again."""
    training, history = finished
    job, artifacts = Path(training.job_dir), Path(training.artifacts_dir)
    (artifacts / "history.csv").unlink()
    (job / "job_meta.json").unlink()
    again = made(job, artifacts_dir=artifacts, optimizer=keras.optimizers.Adam(0.01))
    found = again.run_train((X, Y), (X, Y), 2)
    assert (found.history, found.epoch) == (history.history, [0, 1])
    assert json.loads((job / "job_meta.json").read_text())["last_epoch"] == 2
    assert (artifacts / "history.csv").is_file()
    for ours, theirs in zip(again.model.get_weights(), training.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_optimizer_is_no_secret(finished):
    """A job that would resume with other settings is refused, by the key."""
    training, _ = finished
    with pytest.raises(UsageError, match=r"^optimizer.learning_rate: 0.01 -> 0.5"):
        made(training.job_dir, optimizer=keras.optimizers.Adam(0.5)).run_train((X, Y), (X, Y), 3)


def test_pipeline_files(finished, tmp_path):
    training, history = finished
    training.save_pipeline_metadata(tmp_path / "ui.json", tmp_path / "metrics.json")
    source = f"{training.job_dir}/logs"
    assert json.loads((tmp_path / "ui.json").read_text()) == {"outputs": [{"type": "tensorboard", "source": source}]}
    metrics = {m["name"]: m for m in json.loads((tmp_path / "metrics.json").read_text())["metrics"]}
    assert metrics["val_loss"] == {"name": "val_loss", "numberValue": history.history["val_loss"][-1], "format": "RAW"}
    assert metrics["val_accuracy"]["format"] == "PERCENTAGE"


# -- classes of the user's -------------------------------------------------------------------------------------------


class OwnStep(keras.Model):
    """Learns by a step of its own, in the form that Keras wants on this backend."""

    if TENSORFLOW:

        def train_step(self, data):
            import tensorflow as tf

            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "own": loss * 0 + 7}

    elif keras.backend.backend() == "torch":

        def train_step(self, data):
            x, y = data
            self.zero_grad()
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            loss.backward()
            gradients = [variable.value.grad for variable in self.trainable_variables]
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss, "own": loss * 0 + 7}

    else:

        def train_step(self, state, data):
            import jax

            trainable, others, optimizer, metrics = state
            x, y = data

            def loss_of(values):
                y_pred, new = self.stateless_call(values, others, x, training=True)
                return self.compute_loss(y=y, y_pred=y_pred), new

            (loss, new), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
            return {"loss": loss, "own": loss * 0 + 7}, (trainable, new, optimizer, metrics)


def test_custom_model_class_from_the_first_start(tmp_path):
    """And after a restart; one that the function returns itself stays the same object."""
    for epochs in (1, 2):
        training = made(tmp_path / "job", custom_model_class=OwnStep)
        assert isinstance(training.model, OwnStep)
        history = training.run_train((X, Y), None, epochs)
    assert history.history["own"] == [7, 7]
    inputs = keras.Input((4,))
    ready = OwnStep(inputs=inputs, outputs=keras.layers.Dense(2)(inputs))
    assert made(tmp_path / "other", build_model_func=lambda: ready, custom_model_class=OwnStep).model is ready


def test_subclass(tmp_path):
    """`__init__` and `run_train` are there to be overridden."""

    class Scaled(Training):
        def __init__(self, *, scale, **kwargs):
            super().__init__(**kwargs)
            self.scale = scale

        def run_train(self, train_ds, valid_ds, epochs):
            self.seen = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
            self.add_callback(self.seen)
            return super().run_train((train_ds[0] * self.scale, train_ds[1]), valid_ds, epochs)

    training = made(tmp_path / "job", Scaled, scale=2.0)
    assert training.run_train((X, Y), None, 1).epoch == [0]
    assert json.loads((tmp_path / "job" / "run.json").read_text())["experiment"] == "Scaled"


def test_custom_objects(tmp_path):
    def halved(y_true, y_pred):
        return keras.ops.mean((keras.ops.cast(y_true, "float32") - y_pred[:, 0]) ** 2) / 2

    training = made(tmp_path / "job", loss="halved", custom_objects={"halved": halved})
    assert training.run_train((X, Y), None, 1).history["loss"][0] < 1


# -- nothing bad is kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bad", "loss"), [(np.nan, "nan"), pytest.param(1e30, "inf", marks=pytest.mark.full)])
def test_what_is_not_finite_is_neither_saved_nor_exported(tmp_path, bad, loss):
    """The loss goes bad in the second epoch: the first one's checkpoint is the last, and no model is exported.

    The message names the very step, and `history.csv`, which a tuner may wait for, has the epoch that failed.
    """

    def spoiling(epoch, logs):
        if epoch == 1:
            kernel = training.model.layers[-1].kernel
            kernel.assign(np.full(kernel.shape, bad, "float32"))

    spoil = keras.callbacks.LambdaCallback(on_epoch_begin=spoiling)
    linear = functools.partial(build, activation="linear")
    training = made(tmp_path / "job", artifacts_dir=tmp_path / "artifacts", build_model_func=linear, loss="mse")
    training.add_callback(spoil)
    data = X, np.eye(2, dtype="float32")[Y]
    with pytest.raises(TrainingError, match=f"the training loss is {loss} at step 3; the checkpoint of step 2 is"):
        training.run_train(data, data, 3)
    assert [path.name for path in (tmp_path / "job" / "checkpoints").iterdir()] == ["2"]
    assert json.loads((tmp_path / "job" / "job_meta.json").read_text())["last_epoch"] == 1
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["history.csv"]
    first, second = csv.DictReader((tmp_path / "artifacts" / "history.csv").read_text().splitlines())
    assert (first["epoch"], second["epoch"]) == ("0", "1")
    assert np.isfinite([float(first["loss"]), float(first["val_loss"])]).all()
    assert (second["loss"], second["val_loss"]) == (loss, "nan")
    assert training.history.epoch == [0, 1]
    assert np.isfinite(training.history.history["loss"]).tolist() == [True, False]


class Interrupting(keras.callbacks.Callback):
    """Presses Ctrl-C after a batch; at 0 never."""

    def __init__(self, batch):
        super().__init__()
        self._batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self._batch:
            os.kill(os.getpid(), signal.SIGINT)


def test_the_step_in_which_the_loss_was_not_finite_is_named(tmp_path):
    """Not the end of the epoch; also in a job that resumes inside an epoch, whose earlier steps were sound."""
    x = X.copy()
    x[8 * 4 + 1] = np.nan
    data = ArrayStream((x, Y), 8, shuffle=False, seed=0, repeat=True)
    with pytest.raises(TrainingError, match="the training loss is nan at step 5;"):
        made(tmp_path / "job").run_train(data, None, 2)
    for batch, error, words in ((3, KeyboardInterrupt, None), (0, TrainingError, "nan at step 5;")):
        training = made(tmp_path / "resumed")
        training.add_callback(Interrupting(batch))
        with pytest.raises(error, match=words):
            training.run_train(ArrayStream((x, Y), 8, shuffle=False, seed=0, repeat=True), None, 2)


def test_fewer_epochs_than_are_trained_are_refused(tmp_path, capsys):
    made(tmp_path / "job").run_train((X, Y), None, 3)
    with pytest.raises(UsageError, match="epochs: received 2, but 3 are trained already: ask for 3 or more, or start"):
        made(tmp_path / "job").run_train((X, Y), None, 2)
    made(tmp_path / "job", verbose=True).run_train((X, Y), None, 3)
    assert "resumed at step 6, attempt 2\n" in capsys.readouterr().err


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("build_model_func", {"build_model_func": lambda: "model"}),
        ("build_model_func", {"build_model_func": lambda: (build(), "adam")}),
        ("build_model_func", {"build_model_func": None}),
        ("build_model_func", {"build_model_func": lambda classes: build()}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": "3"}),
        ("job_dir", {"job_dir": 5}),
        ("artifacts_dir", {"artifacts_dir": None}),
        ("use_tpu", {"use_tpu": "false"}),
        ("custom_objects", {"custom_objects": 5}),
        ("optimizer", {"optimizer": None}),
        ("loss", {"loss": 5}),
        ("allow_change", {"allow_change": 5}),
        ("allow_change", {"allow_change": ["optimiser.rate"]}),
        ("job_dir", {"job_dir": ""}),
        ("job_dir", {"job_dir": "s3://key:secret@bucket/job"}),
        ("job_dir", {"job_dir": Path("s3://bucket/job")}),
        ("artifacts_dir", {"artifacts_dir": "s4://bucket/job"}),
        ("artifacts_dir", {"job_dir": "a/b", "artifacts_dir": "a/b/"}),
        ("optimizer, loss, metrics", {"optimizer": "adan"}),
        ("loss", {"loss": "sparse_crossentropy"}),
        ("metrics", {"metrics": ["acurracy"]}),
        ("custom_model_class", {"custom_model_class": dict}),
        ("custom_model_class", {"custom_model_class": "Net"}),
        ("build_model_func", {"build_model_func": build()}),
    ],
)
def test_bad_construction(tmp_path, monkeypatch, key, changes):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        made(**{"job_dir": "unused", **changes})
    text = str(refused.value)
    assert text.startswith(f"{key}: ")
    assert "\n" not in text
    assert "secret" not in text
    assert not list(tmp_path.iterdir())


def test_a_misspelt_key_has_a_nearest_one():
    with pytest.raises(UsageError) as refused:
        made("unused", allow_change=["optimiser.rate"])
    assert refused.value.remedy == "did you mean 'optimizer'?"


def test_bad_calls(tmp_path):
    """Each in one line, and nothing is left behind."""
    training = made(tmp_path / "job", artifacts_dir=tmp_path / "artifacts")
    calls = {
        "epochs: received 0": lambda: training.run_train((X, Y), (X, Y), 0),
        "epochs: received 1.5": lambda: training.run_train((X, Y), (X, Y), 1.5),
        "epochs: received '3'": lambda: training.run_train((X, Y), (X, Y), "3"),
        "steps_per_epoch: received '3'": lambda: training.run_train((X, Y), None, 1, steps_per_epoch="3"),
        "validation_steps: received 0": lambda: training.run_train((X, Y), (X, Y), 1, validation_steps=0),
        "valid_ds: cannot read data from": lambda: training.run_train((X, Y), 5, 1),
        "train_ds: contains no batch": lambda: training.run_train([], None, 1),
        "history: received 5": lambda: training.save_history(5),
        "history['loss']: received ['a']": lambda: training.save_history({"loss": ["a"]}),
        "train_ds: cannot read data from": lambda: training.run_train(7, None, 1),
        "steps_per_epoch: the data has no known number": lambda: training.run_train(lambda: iter([(X, Y)]), None, 1),
        "callback: received 'stop'": lambda: training.add_callback("stop"),
        "callbacks: received 3": lambda: training.add_callbacks(3),
        "history: nothing was trained yet": training.save_history,
    }
    for words, call in calls.items():
        with pytest.raises(UsageError) as refused:
            call()
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        made(tmp_path / "job", artifacts_dir=tmp_path / "file").run_train((X, Y), None, 1)


def test_no_tpu(tmp_path, monkeypatch, caplog):
    """A clear error; or the CPU, where the environment allows it."""
    for name in ("EVERSTEP_DEVICE_FALLBACK", "TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="no TPU") as refused:
        made(tmp_path, use_tpu=True)
    assert (refused.value.key, refused.value.received) == ("use_tpu", True)
    assert "EVERSTEP_DEVICE_FALLBACK=cpu" in refused.value.remedy
    monkeypatch.setenv("EVERSTEP_DEVICE_FALLBACK", "gpu")
    with pytest.raises(UsageError, match="EVERSTEP_DEVICE_FALLBACK: received 'gpu'"):
        made(tmp_path, use_tpu=True)
    monkeypatch.setenv("EVERSTEP_DEVICE_FALLBACK", "cpu")
    optimizer = keras.optimizers.SGD(0.5)
    with caplog.at_level(logging.WARNING):
        training = made(tmp_path, use_tpu=True, optimizer=optimizer)
    assert training.model.optimizer is optimizer
    assert "training on the CPU" in caplog.text


def test_a_job_in_a_store(tmp_path, monkeypatch, capsys):
    """All that a job leaves is there, others look at it by its URL, and a finished one is done again from nothing."""
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    job, artifacts = f"file://{tmp_path}/store/job", f"file://{tmp_path}/store/artifacts"
    history = made(job, artifacts_dir=artifacts).run_train((X, Y), (X, Y), 2)
    place = tmp_path / "store" / "job"
    assert json.loads((place / "job_meta.json").read_text()) == {"last_epoch": 2, "last_checkpoint": "00002"}
    assert sorted(path.name for path in (place / "epochs").iterdir()) == ["00001.json", "00002.json"]
    assert list((place / "logs" / "train").glob("*tfevents*"))
    assert (tmp_path / "store" / "artifacts" / SERVED).exists()
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "other"))
    (tmp_path / "store" / "artifacts" / "history.csv").unlink()
    again = made(job, artifacts_dir=artifacts)
    assert again.run_train((X, Y), (X, Y), 2).history == history.history
    assert (tmp_path / "store" / "artifacts" / "history.csv").is_file()
    look_from_the_command_line(job, capsys)


def look_from_the_command_line(job, capsys):
    def output(command, *words):
        load(command).main(args=list(words), prog_name="everstep", standalone_mode=False)
        return capsys.readouterr().out

    assert re.search(rf"^{job} +Training .* finished +4/4 100 %", output("runs", job.rpartition("/")[0]), re.M)
    assert json.loads(output("runs", job, "--json"))[0]["directory"] == job
    assert re.search(r"^status +finished$", output("runs", "show", job), re.M)
    assert Path(output("report", job).strip()).read_text().count("<title>job")
    with pytest.raises(UsageError, match="unsent numbers are on the machine that trained"):
        output("runs", "sync", job)
    with pytest.raises(UsageError, match="there is no run at"):
        output("runs", "show", f"{job}-not")
