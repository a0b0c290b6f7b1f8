"""Code that is edited between two attempts: printed in one line, and recorded per attempt, with any entry point."""

import importlib
import sys

import keras
import numpy as np
import pytest

import everstep
from everstep.flow import DataSet, FlowTask, run_flow
from everstep.run.record import read
from everstep.testing.tasks import Regression

pytestmark = pytest.mark.slow

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
LINE = "the code has changed since the last attempt: train_rate.py\n"


def linear_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


class Line(FlowTask):
    """A flow of the same model."""

    def fetch_data(self):
        """Nothing to fetch."""

    def preprocessing_train(self):
        self.dataset = DataSet(X, Y)

    def build_model(self):
        return linear_model()


def by_fit(folder, epochs):
    model = linear_model()
    model.compile("sgd", "mse")
    everstep.fit(model, X, Y, epochs=epochs, model_dir=folder / "run")
    return folder / "run"


def by_training(folder, epochs):
    training = everstep.Training(build_model_func=linear_model, job_dir=folder / "run", optimizer="sgd", loss="mse")
    training.run_train((X, Y), None, epochs)
    return folder / "run"


class LineTask(Regression):
    """The same model as a Task."""

    def build_model(self):
        return linear_model()

    def build_inputs(self, params, input_context=None):
        return X, Y


def by_experiment(folder, epochs):
    data = everstep.DataConfig(global_batch_size=4)
    params = everstep.ExperimentConfig(
        task=everstep.TaskConfig(train_data=data),
        trainer=everstep.TrainerConfig(train_steps=2 * epochs, steps_per_loop=1, checkpoint_interval=1),
    )
    everstep.run_experiment(LineTask(params=params.task), params, folder / "run", "train", export=False)
    return folder / "run"


def by_flow(folder, epochs):
    settings = ["Line.epoch=" + str(epochs), "Line.batch_size=4", "Line.loss=mse", "Line.metrics=[]"]
    return run_flow(Line, settings, folder, model_dir=folder / "run").directory


@pytest.mark.parametrize("start", [by_experiment, by_fit, by_training, by_flow])
def test_edited_code_is_printed_once_and_recorded_per_attempt(tmp_path, monkeypatch, capfd, start):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("everstep.projects.flow.recording.tracking_uri", lambda root: None)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "line"\n')
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "parameters.yaml").write_text("Line: {seed: 1}\n")
    (tmp_path / "config" / "catalog.yaml").write_text("{}\n")
    (tmp_path / "train_rate.py").write_text("rate = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("train_rate")
    start(tmp_path, 1)
    (tmp_path / "another.py").write_text("rate = 2\n")
    start(tmp_path, 1)
    assert "the code has changed" not in capfd.readouterr().err, "the same code, and a file that is not imported"
    (tmp_path / "train_rate.py").write_text("rate = 2\n")
    directory = start(tmp_path, 2)
    assert capfd.readouterr().err.count(LINE) == 1
    record = read(directory)
    codes = [attempt["code"]["sources"] for attempt in record["attempts"]]
    assert len({*codes}) == 3
    assert codes[2] == record["code"]["sources"]
    assert "train_rate.py" in record["code"]["files"]
    assert "another.py" not in record["code"]["files"]
    sys.modules.pop("train_rate")
