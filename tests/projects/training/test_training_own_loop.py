"""A loop of the user's own in `run_train`: it leaves what every job leaves in `artifacts_dir`."""

import json

import keras
import numpy as np
import pytest
from test_training_job import SERVED, X, Y, training_job

from everstep.errors import TrainingError
from everstep.projects.components.exported_model import load_exported
from everstep.testing.problems import raises_problem
from everstep.training import Training

pytestmark = pytest.mark.backend


class OwnLoop(Training):
    def run_train(self, train_ds, valid_ds=None, epochs=1):
        losses = [float(self.model.train_on_batch(*train_ds)[0]) for _ in range(epochs)]
        self.places = self.save_model(), self.save_history({"loss": np.float32(losses), "late": [1]})
        return self.history


def test_artifacts(tmp_path):
    training = training_job(tmp_path / "job", OwnLoop, artifacts_dir=tmp_path / "artifacts")
    history = training.run_train((X, Y), None, 3)
    assert training.places == (f"{tmp_path}/artifacts/{SERVED}", f"{tmp_path}/artifacts/history.csv")
    lines = (tmp_path / "artifacts" / "history.csv").read_text().splitlines()
    assert lines[0] == "epoch,loss,late"
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "1", "2"] == [str(epoch) for epoch in history.epoch]
    assert [float(line.split(",")[1]) for line in lines[1:]] == history.history["loss"]
    wanted = keras.ops.convert_to_numpy(training.model(X))
    np.testing.assert_allclose(load_exported(training.places[0]).predict(X), wanted, rtol=1e-5)
    training.save_pipeline_metadata(tmp_path / "ui.json", tmp_path / "metrics.json")
    assert [one["name"] for one in json.loads((tmp_path / "metrics.json").read_text())["metrics"]] == ["loss", "late"]


def test_what_keras_returns_is_a_history(tmp_path):
    training = training_job(tmp_path / "job", artifacts_dir=tmp_path / "artifacts")
    found = training.model.fit(X, Y, epochs=2, verbose=0)
    training.save_history(found)
    assert training.history is found
    assert len((tmp_path / "artifacts" / "history.csv").read_text().splitlines()) == 3


def test_refused(tmp_path):
    """Nothing that is not finite is exported."""
    training = training_job(tmp_path / "job", artifacts_dir=tmp_path / "artifacts")
    training.model.set_weights([weight * np.nan for weight in training.model.get_weights()])
    kernel = training.model.trainable_variables[0]
    with raises_problem(TrainingError, key=kernel.path, reason="is not finite, so the model is not saved"):
        training.save_model()
    assert not (tmp_path / "artifacts").exists()


def test_without_artifacts_dir_what_is_saved_goes_into_the_jobs_own(tmp_path):
    training = training_job(tmp_path / "job")
    training.run_train((X, Y), None, 2)
    assert not (tmp_path / "job" / "artifacts").exists(), "none were requested yet"
    assert training.save_history() == str(tmp_path / "job" / "artifacts" / "history.csv")
    assert (tmp_path / "job" / "artifacts" / "history.csv").read_text().startswith("epoch,")
    assert training.save_model() == str(tmp_path / "job" / "artifacts" / SERVED)
    training_job(tmp_path / "job").run_train((X, Y), None, 3)  # and the job resumes as before
