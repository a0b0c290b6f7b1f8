"""A `run` that the user wrote: recorded and tracked as the default one is, alone or around it."""

import json
import sqlite3

import keras
import numpy as np
import pytest

from everstep.flow import run_flow

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def run(project, name, *overrides):
    return run_flow(name, overrides, project, verbose=False)


def record(project):
    (directory,) = (project / "runs").iterdir()
    return json.loads((directory / "run.json").read_text())


def tracked(project):
    """What the MLflow store has of the only run: its status, and its numbers with their steps."""
    with sqlite3.connect(project / "mlflow.db") as database:
        ((status,),) = database.execute("select status from runs").fetchall()
        return status, dict(database.execute("select key, step from metrics").fetchall())


def test_it_fails_with_what_it_had_and_the_next_one_is_clean(project):
    with pytest.raises(RuntimeError, match="no answer"):
        run(project, "OwnRun", "OwnRun.fails_in=1")
    assert tracked(project) == ("FAILED", {"answer": 3})
    assert (record(project)["status"], record(project)["flow"]["complete"]) == ("failed", False)
    assert record(project)["data"]["numbers.raw"]["sha256"]
    done = run(project, "OwnRun", "OwnRun.fails_in=1")
    assert done.metrics == {"answer": 42.0}
    assert tracked(project) == ("FINISHED", {"answer": 3})
    found = record(project)
    assert (found["status"], found["flow"]["complete"], len(found["attempts"])) == ("finished", True, 2)


def test_what_fails_before_the_training_is_recorded_too(project):
    with pytest.raises(RuntimeError, match="no memory left"):
        run(project, "Unready", "Unready.fails_in=1", "Unready.epoch=1")
    assert tracked(project)[0] == "FAILED"
    assert record(project)["attempts"][-1]["reason"] == "RuntimeError: no memory left"
    assert record(project)["data"]["numbers.raw"]["sha256"]  # opened by its path
    run(project, "Unready", "Unready.fails_in=1", "Unready.epoch=1")
    assert tracked(project)[0] == "FINISHED"
    assert (record(project)["status"], record(project)["flow"]["complete"]) == ("finished", True)


def test_around_the_default_one_it_goes_on_where_it_failed(project):
    with pytest.raises(RuntimeError, match="after the training"):
        run(project, "More", "More.fails_in=99", "More.epoch=1")
    assert tracked(project)[0] == "FAILED"
    failed = record(project)
    assert (failed["status"], failed["attempts"][-1]["reason"]) == ("failed", "RuntimeError: after the training")
    done = run(project, "More", "More.fails_in=99", "More.epoch=1")
    status, numbers = tracked(project)
    assert status == "FINISHED"
    assert set(numbers) == {"before", "after", "accuracy", "loss", "test acc", "test loss"}
    found = record(project)
    assert (found["status"], found["flow"]["complete"]) == ("finished", True)
    assert found["weights_digest"] == failed["weights_digest"]  # nothing was trained twice
    assert dict(done.metrics) == found["metrics"]["test"]
    _has_its_preprocessing_in_it(done)


def _has_its_preprocessing_in_it(done):
    """The saved model takes what comes, and the trained one what `preprocessing_train` made of it."""
    numbers = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    saved = keras.saving.load_model(done.directory / "model.keras", compile=False)
    answers = [saved(numbers), done.model(2 * numbers)]
    np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, answers), rtol=1e-6)
