"""`Training` in one process: what it builds, trains, returns and leaves behind; and what it refuses."""

import csv
import functools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

from everstep.cli.commands import load
from everstep.data.arrays import ArrayStream
from everstep.errors import TrainingError, UsageError
from everstep.export.model_export import serving_format
from everstep.projects.components.exported_model import load_exported
from everstep.run import program
from everstep.run.resume_checks import ChangeRefused
from everstep.testing.problems import raises_problem
from everstep.training import Training

pytestmark = pytest.mark.backend

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
TENSORFLOW = keras.backend.backend() == "tensorflow"
SERVED = serving_format()[0]


def dense_classifier(activation="softmax"):
    inputs = keras.Input((4,), name="x")
    return keras.Model(inputs, keras.layers.Dense(2, activation)(inputs))


def training_job(job_dir, cls=Training, **changes):
    given = {"build_model_func": dense_classifier, "optimizer": "adam", "loss": "sparse_categorical_crossentropy"}
    return cls(**{**given, "job_dir": job_dir, "metrics": ["accuracy"], "verbose": False, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A job of two epochs with artifacts."""
    root = tmp_path_factory.mktemp("finished")
    optimizer = keras.optimizers.Adam(0.01)
    training = training_job(root / "job", artifacts_dir=root / "artifacts", optimizer=optimizer)
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


def test_a_repeated_program_writes_elsewhere(tmp_path, monkeypatch):
    """`everstep reproduce` starts the program again: neither the job nor its artifacts are touched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "_numbers", {})
    redirected = program.Redirection(str(tmp_path / "again"), repeats=True)
    for name, value in redirected.variables().items():
        monkeypatch.setenv(name, value)
    training = training_job("job", artifacts_dir="artifacts")
    training.run_train((X, Y), None, 1)
    training.save_pipeline_metadata()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "again-artifacts"]
    assert json.loads((tmp_path / "again" / "run.json").read_text())["program"]["run"] == 1
    assert sorted(path.name for path in (tmp_path / "again-artifacts").iterdir()) == sorted(["history.csv", SERVED])


def test_finished_job_returns_all_and_mends_its_files(finished):
    """Run again there is nothing to train: the whole history comes back, and what was lost is there again."""
    training, history = finished
    job, artifacts = Path(training.job_dir), Path(training.artifacts_dir)
    (artifacts / "history.csv").unlink()
    (job / "job_meta.json").unlink()
    again = training_job(job, artifacts_dir=artifacts, optimizer=keras.optimizers.Adam(0.01))
    found = again.run_train((X, Y), (X, Y), 2)
    assert (found.history, found.epoch) == (history.history, [0, 1])
    assert json.loads((job / "job_meta.json").read_text())["last_epoch"] == 2
    assert (artifacts / "history.csv").is_file()
    for ours, theirs in zip(again.model.get_weights(), training.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def files_in(folder):
    """Content and time of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_finished_job_rewrites_no_artifact(tmp_path):
    """Also not what users added to them; only files that are missing are written, and those of a longer training."""
    job, artifacts = tmp_path / "job", tmp_path / "artifacts"
    training_job(job, artifacts_dir=artifacts).run_train((X, Y), None, 1)
    is_folder = (artifacts / SERVED).is_dir()
    added = artifacts / (f"{SERVED}/assets.extra" if is_folder else "extra") / "warmup.txt"
    added.parent.mkdir()
    added.write_text("a user's")
    before = files_in(artifacts)
    training_job(job, artifacts_dir=artifacts).run_train((X, Y), None, 1)
    assert files_in(artifacts) == before
    model = artifacts / SERVED / "saved_model.pb" if is_folder else artifacts / SERVED
    model.unlink()
    (artifacts / "history.csv").unlink()
    training_job(job, artifacts_dir=artifacts).run_train((X, Y), None, 1)
    assert model.is_file()
    assert (artifacts / "history.csv").read_bytes() == before[Path("history.csv")][0]
    longer = training_job(job, artifacts_dir=artifacts)
    longer.run_train((X, Y), None, 2)
    np.testing.assert_allclose(
        load_exported(artifacts / SERVED).predict(X), keras.ops.convert_to_numpy(longer.model(X)), rtol=1e-5
    )
    assert len((artifacts / "history.csv").read_text().splitlines()) == 3
    assert added.read_text() == "a user's"


class Interrupted(Training):
    """Is interrupted when it is trained, and its model is not written yet."""

    def save_model(self, sample=None):
        raise KeyboardInterrupt


def test_artifacts_of_an_earlier_step_are_replaced(tmp_path):
    """A longer training that ends before its model is written leaves the one of the shorter training."""
    job, artifacts = tmp_path / "job", tmp_path / "artifacts"
    training_job(job, artifacts_dir=artifacts).run_train((X, Y), None, 1)
    with pytest.raises(KeyboardInterrupt):
        training_job(job, Interrupted, artifacts_dir=artifacts).run_train((X, Y), None, 2)
    again = training_job(job, artifacts_dir=artifacts)
    assert again.run_train((X, Y), None, 2).epoch == [0, 1]
    np.testing.assert_allclose(
        load_exported(artifacts / SERVED).predict(X), keras.ops.convert_to_numpy(again.model(X)), rtol=1e-5
    )
    assert len((artifacts / "history.csv").read_text().splitlines()) == 3


def test_another_optimizer_is_no_secret(finished):
    """A job that would resume with other settings is refused, by the key."""
    training, _ = finished
    with raises_problem(key="optimizer.learning_rate", reason="0.01 -> 0.5"):
        training_job(training.job_dir, optimizer=keras.optimizers.Adam(0.5)).run_train((X, Y), (X, Y), 3)


def test_pipeline_files(finished, tmp_path):
    training, history = finished
    training.save_pipeline_metadata(tmp_path / "ui.json", tmp_path / "metrics.json")
    source = f"{training.job_dir}/logs"
    assert json.loads((tmp_path / "ui.json").read_text()) == {"outputs": [{"type": "tensorboard", "source": source}]}
    metrics = {m["name"]: m for m in json.loads((tmp_path / "metrics.json").read_text())["metrics"]}
    assert metrics["val_loss"] == {"name": "val_loss", "numberValue": history.history["val_loss"][-1], "format": "RAW"}
    assert metrics["val_accuracy"]["format"] == "PERCENTAGE"


def test_what_a_job_prints(tmp_path, capsys):
    """One line about the model, whose layers model_summary() prints; epochs, not steps; and where its files are."""
    places = {"job_dir": tmp_path / "job", "artifacts_dir": tmp_path / "artifacts"}
    training = training_job(**places, verbose=True)
    training.model_summary()
    assert "Total params" in capsys.readouterr().out
    training.run_train((X, Y), (X, Y), 2)
    lines = capsys.readouterr().err.splitlines()
    assert not [line for line in lines if "Total params" in line or "step:" in line]
    assert lines[0] == f"model: {training.model.name}, layers: 2, 10 parameters, 10 of them trainable"
    assert "plan: epochs 1 to 2 of 2 steps, evaluate every epoch, save every epoch" in lines
    kinds = [tuple(line.split(" | ")[:2]) for line in lines if " | " in line]
    assert kinds == [(kind, f"epoch: {n}/2") for n in (1, 2) for kind in ("train", " eval")]
    artifacts = f"artifacts in {tmp_path}/artifacts: {SERVED}, history.csv"
    last = f"done: 2 epochs; {artifacts}; checkpoints and logs in {tmp_path}/job"
    assert lines[-1] == last
    training_job(**places, verbose=True).run_train((X, Y), (X, Y), 2)
    lines = capsys.readouterr().err.splitlines()
    assert "nothing left to train: the run has done 2 epochs" in lines
    assert lines[-1] == last


@pytest.mark.full
def test_a_job_shows_no_start_up_messages_of_a_backend(tmp_path):
    """Where everstep is imported first: neither those of the backend, nor those of what writes the model."""
    program = """
        import everstep.training
        training = everstep.training.Training
        import keras, numpy
        x = numpy.zeros((8, 4), "float32")
        build = lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        places = {"job_dir": "job", "artifacts_dir": "artifacts"}
        training(build_model_func=build, **places, optimizer="sgd", loss="mse").run_train((x, x[:, :1]), None, 1)
    """
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    words = [sys.executable, "-c", textwrap.dedent(program)]
    job = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    lines = job.stderr.splitlines()
    assert lines[0].startswith("model: ")
    assert lines[-1].startswith("done: 1 epoch;")
    assert not [line for line in lines if ".cc:" in line or "absl::" in line]


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
        training = training_job(tmp_path / "job", custom_model_class=OwnStep)
        assert isinstance(training.model, OwnStep)
        history = training.run_train((X, Y), None, epochs)
    assert history.history["own"] == [7, 7]
    inputs = keras.Input((4,))
    ready = OwnStep(inputs=inputs, outputs=keras.layers.Dense(2)(inputs))
    assert training_job(tmp_path / "other", build_model_func=lambda: ready, custom_model_class=OwnStep).model is ready


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

    training = training_job(tmp_path / "job", Scaled, scale=2.0)
    assert training.run_train((X, Y), None, 1).epoch == [0]
    assert json.loads((tmp_path / "job" / "run.json").read_text())["experiment"] == "Scaled"


def test_custom_objects(tmp_path):
    def halved(y_true, y_pred):
        return keras.ops.mean((keras.ops.cast(y_true, "float32") - y_pred[:, 0]) ** 2) / 2

    training = training_job(tmp_path / "job", loss="halved", custom_objects={"halved": halved})
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
    linear = functools.partial(dense_classifier, activation="linear")
    training = training_job(tmp_path / "job", artifacts_dir=tmp_path / "artifacts", build_model_func=linear, loss="mse")
    training.add_callback(spoil)
    data = X, np.eye(2, dtype="float32")[Y]
    with raises_problem(TrainingError, reason=f"the training loss is {loss} at step 3; the checkpoint of step 2 is"):
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
    with raises_problem(TrainingError, reason="the training loss is nan at step 5;"):
        training_job(tmp_path / "job").run_train(data, None, 2)
    interrupted, refused = pytest.raises(KeyboardInterrupt), raises_problem(TrainingError, reason="nan at step 5;")
    for batch, expected in ((3, interrupted), (0, refused)):
        training = training_job(tmp_path / "resumed")
        training.add_callback(Interrupting(batch))
        with expected:
            training.run_train(ArrayStream((x, Y), 8, shuffle=False, seed=0, repeat=True), None, 2)


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("build_model_func", {"build_model_func": lambda: "model"}),
        ("build_model_func", {"build_model_func": lambda: (dense_classifier(), "adam")}),
        ("build_model_func", {"build_model_func": None}),
        ("build_model_func", {"build_model_func": lambda classes: dense_classifier()}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": "3"}),
        ("job_dir", {"job_dir": 5}),
        ("artifacts_dir", {"artifacts_dir": None}),
        ("use_tpu", {"use_tpu": "false"}),
        ("custom_objects", {"custom_objects": 5}),
        ("optimizer", {"optimizer": None}),
        ("loss", {"loss": 5}),
        ("loss", {"loss": {"class_name": "Huber", "config": {"dleta": 1.0}}}),
        ("metrics", {"metrics": [5]}),
        ("optimizer", {"optimizer": 5}),
        ("allow_change", {"allow_change": 5}),
        ("allow_change", {"allow_change": ["optimiser.rate"]}),
        ("job_dir", {"job_dir": ""}),
        ("job_dir", {"job_dir": "s3://key:secret@bucket/job"}),
        ("job_dir", {"job_dir": Path("s3://bucket/job")}),
        ("artifacts_dir", {"artifacts_dir": "s4://bucket/job"}),
        ("artifacts_dir", {"job_dir": "a/b", "artifacts_dir": "a/b/"}),
        ("optimizer", {"optimizer": "adan"}),
        ("metrics", {"metrics": "accuracy"}),
        ("loss", {"loss": "sparse_crossentropy"}),
        ("metrics", {"metrics": ["acurracy"]}),
        ("custom_model_class", {"custom_model_class": dict}),
        ("custom_model_class", {"custom_model_class": "Net"}),
        ("build_model_func", {"build_model_func": dense_classifier()}),
    ],
)
def test_bad_construction(tmp_path, monkeypatch, key, changes):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        training_job(**{"job_dir": "unused", **changes})
    text = str(refused.value)
    assert text.startswith(f"{key}: ")
    assert "\n" not in text
    assert "secret" not in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "given", "suggested"),
    [
        ("optimizer", "adamm", "adam"),
        ("loss", "sparse_crossentropy", "sparse_categorical_crossentropy"),
        ("loss", {"dense": "msee"}, "mse"),
        ("loss", "haved", "halved"),
        ("loss", {"class_name": "Huberr"}, "Huber"),
        ("optimizer", {"class_name": "Adamm"}, "adam"),
        ("metrics", ["acurracy"], "accuracy"),
        ("metrics", {"dense": ["auk", "accuracy"]}, "AUC"),
    ],
)
def test_misspelt_names_have_a_nearest_one(key, given, suggested):
    with pytest.raises(UsageError) as refused:
        training_job("unused", **{key: given, "custom_objects": {"halved": keras.losses.mean_squared_error}})
    assert refused.value.key == key
    assert repr(suggested).lower() in refused.value.remedy.lower()


def test_losses_and_metrics_may_be_configurations(tmp_path):
    huber = {"class_name": "Huber", "config": {"name": "mine", "reduction": "sum"}}
    metric = {"class_name": "MeanSquaredError", "config": {"name": "squares", "dtype": "float32"}}
    assert training_job(tmp_path / "job", loss=huber, metrics=[metric], optimizer="adam").model.compiled


def test_a_loss_of_none_needs_a_model_with_losses_of_its_own(tmp_path):
    if keras.backend.backend() == "jax":
        pytest.skip("there Keras trains such a model, with a loss of 0")
    with raises_problem(key="loss", received=None, reason="the model has no loss"):
        training_job(tmp_path / "job", loss=None, metrics=None).run_train((X, Y), None, 1)
    assert not list(tmp_path.iterdir())


def test_a_model_that_is_compiled_already_is_refused():
    """Its optimizer and loss would be replaced by those of the job."""

    def compiled():
        model = dense_classifier()
        model.compile("sgd", "mae")
        return model

    with pytest.raises(UsageError) as refused:
        training_job("unused", build_model_func=compiled)
    assert refused.value.key == "build_model_func"
    assert "SGD, mae" in refused.value.reason
    assert "compile=False" in refused.value.remedy


def test_the_size_of_batches_of_arrays(tmp_path):
    training = training_job(tmp_path / "job")
    history = training.run_train((X, Y), (X, Y), 1, batch_size=8)
    assert int(training.model.optimizer.iterations) == len(X) // 8
    with pytest.raises(ChangeRefused) as refused:
        training_job(tmp_path / "job").run_train((X, Y), (X, Y), 2)
    assert {"batch_size", "steps_per_epoch"} == set(refused.value.keys)
    again = training_job(tmp_path / "job").run_train((X, Y), (X, Y), 2, batch_size=8)
    assert again.epoch == [0, 1]
    assert again.history["loss"][0] == history.history["loss"][0]


def test_a_misspelt_key_has_a_nearest_one():
    with pytest.raises(UsageError) as refused:
        training_job("unused", allow_change=["optimiser.rate"])
    assert refused.value.remedy == "did you mean 'optimizer'?"


def test_bad_calls(tmp_path):
    """Each in one line, and nothing is left behind."""
    training = training_job(tmp_path / "job", artifacts_dir=tmp_path / "artifacts")
    calls = {
        "epochs: received 1.5": lambda: training.run_train((X, Y), (X, Y), 1.5),
        "epochs: received '3'": lambda: training.run_train((X, Y), (X, Y), "3"),
        "steps_per_epoch: received '3'": lambda: training.run_train((X, Y), None, 1, steps_per_epoch="3"),
        "batch_size: received 0": lambda: training.run_train((X, Y), None, 1, batch_size=0),
        "batch_size: received 8, but train_ds comes in batches": lambda: training.run_train(
            ArrayStream((X, Y), 16, shuffle=False, seed=0, repeat=True), None, 1, batch_size=8
        ),
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


def test_places_that_are_files_are_refused_by_their_argument(tmp_path):
    (tmp_path / "file").write_text("")
    for places in ({"job_dir": tmp_path / "file"}, {"job_dir": tmp_path / "job", "artifacts_dir": tmp_path / "file"}):
        key = list(places)[-1]
        with raises_problem(key=key, received=str(tmp_path / "file"), reason="is a file", remedy="choose a directory"):
            training_job(**places).run_train((X, Y), None, 1)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_tpu(tmp_path, monkeypatch, caplog):
    """A clear error; or the CPU, where the environment allows it."""
    for name in ("EVERSTEP_DEVICE_FALLBACK", "TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with raises_problem(key="use_tpu", received=True, reason="no TPU") as refused:
        training_job(tmp_path, use_tpu=True)
    assert "EVERSTEP_DEVICE_FALLBACK=cpu" in refused.value.remedy
    monkeypatch.setenv("EVERSTEP_DEVICE_FALLBACK", "gpu")
    with raises_problem(key="EVERSTEP_DEVICE_FALLBACK", received="gpu"):
        training_job(tmp_path, use_tpu=True)
    monkeypatch.setenv("EVERSTEP_DEVICE_FALLBACK", "cpu")
    optimizer = keras.optimizers.SGD(0.5)
    with caplog.at_level(logging.WARNING):
        training = training_job(tmp_path, use_tpu=True, optimizer=optimizer)
    assert training.model.optimizer is optimizer
    assert "training on the CPU" in caplog.text


def test_a_job_in_a_store(tmp_path, monkeypatch, capsys):
    """All that a job leaves is there, others look at it by its URL, and a finished one is done again from nothing."""
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    job, artifacts = f"file://{tmp_path}/store/job", f"file://{tmp_path}/store/artifacts"
    history = training_job(job, artifacts_dir=artifacts).run_train((X, Y), (X, Y), 2)
    place = tmp_path / "store" / "job"
    assert json.loads((place / "job_meta.json").read_text()) == {"last_epoch": 2, "last_checkpoint": "00002"}
    assert sorted(path.name for path in (place / "epochs").iterdir()) == ["00001.json", "00002.json"]
    assert list((place / "logs" / "train").glob("*tfevents*"))
    assert (tmp_path / "store" / "artifacts" / SERVED).exists()
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "other"))
    (tmp_path / "store" / "artifacts" / "history.csv").unlink()
    again = training_job(job, artifacts_dir=artifacts)
    assert again.run_train((X, Y), (X, Y), 2).history == history.history
    assert (tmp_path / "store" / "artifacts" / "history.csv").is_file()
    look_from_the_command_line(job, capsys)


def look_from_the_command_line(job, capsys):
    def output(command, *words):
        load(command).main(args=list(words), prog_name="everstep", standalone_mode=False)
        return capsys.readouterr().out

    assert re.search(rf"^{job} +Training .* finished +2/2 epochs 100 %", output("runs", job.rpartition("/")[0]), re.M)
    assert json.loads(output("runs", job, "--json"))[0]["directory"] == job
    assert re.search(r"^status +finished$", output("runs", "show", job), re.M)
    assert Path(output("report", job).strip()).read_text().count("<title>job")
    with raises_problem(reason="unsent numbers are on the machine that trained"):
        output("runs", "sync", job)
    with raises_problem(reason="there is no run at"):
        output("runs", "show", f"{job}-not")
