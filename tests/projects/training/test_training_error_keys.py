"""Errors of the loop as `Training` reports them: with the names of its own arguments, on one line."""

import logging

import keras
import numpy as np
import pytest
from test_training_job import X, Y, training_job

from everstep.errors import TrainingError, UsageError
from everstep.projects.training.training import core_keys
from everstep.run.resume_checks import ChangeRefused

pytestmark = pytest.mark.backend

FOREIGN = ("task.", "trainer.", "runtime.", "Config.")
"""Keys that users of `Training` do not write."""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job of one epoch, with numbers as NumPy has them."""
    folder = tmp_path_factory.mktemp("words") / "job"
    two, one = np.float32(2), np.int64(1)
    history = training_job(folder, seed=np.int64(0)).run_train(
        (X, Y), (X, Y), one, steps_per_epoch=two, validation_steps=one
    )
    assert history.epoch == [0]
    return folder


def other_model():
    inputs = keras.Input((4,), name="x")
    return keras.Model(inputs, keras.layers.Dense(2, "softmax")(keras.layers.Dense(3)(inputs)))


@pytest.mark.parametrize(
    ("changes", "data", "keys", "fits"),
    [
        ({}, (X + 1, Y), {"data"}, True),
        ({"seed": 4}, (X, Y), {"seed"}, True),
        ({"loss": "mse", "metrics": None}, (X, Y), {"loss"}, True),
        ({"optimizer": "sgd"}, (X, Y), {"optimizer"}, False),
        ({"build_model_func": other_model}, (X, Y), {"model"}, False),
    ],
)
def test_refused_changes(job, changes, data, keys, fits):
    """By the arguments, which `allow_change` takes; it is advised where the checkpoint can be loaded then."""
    with pytest.raises(ChangeRefused) as refused:
        training_job(job, **changes).run_train(data, (X, Y), 2, steps_per_epoch=2)
    assert {key.partition(".")[0] for key in refused.value.keys} == keys
    assert ("allow_change=" in str(refused.value.problems[-1])) is fits
    assert "use another directory" in str(refused.value.problems[-1])
    assert not [part for part in FOREIGN if part in str(refused.value)]


def test_what_is_allowed_by_those_words(job):
    """Resumes: the keys of the message are those that `allow_change` takes."""
    training = training_job(job, optimizer=keras.optimizers.Adam(0.5), allow_change=["optimizer.learning_rate", "data"])
    assert training.run_train((X + 1, Y), (X, Y), 2, steps_per_epoch=2).epoch == [0, 1]


def test_data_are_records_too():
    """What holds others covers them, so files that are named one by one need not be."""
    assert core_keys(["data"]) == core_keys(["train_ds.files"]) == ["data", "task.train_records"]
    assert core_keys(["optimizer", "task.loss"]) == ["task.optimizer", "task.loss"]


def test_failures(tmp_path):
    """NaN, and data that ends too soon or never."""
    spoiled = X.copy()
    spoiled[3] = np.nan
    with pytest.raises(TrainingError) as failed:
        training_job(tmp_path / "nan").run_train((spoiled, Y), None, 1)
    with pytest.raises(UsageError) as endless:
        training_job(tmp_path / "endless").run_train((X, Y), endless_data(), 1)
    with pytest.raises(UsageError) as empty:
        training_job(tmp_path / "empty").run_train((X, Y), [], 1)
    assert "learning rate" in str(failed.value)
    assert str(endless.value).startswith("validation_steps: ")
    assert empty.value.key == "valid_ds"
    assert failed.value.remedy == "check the data and the learning rate"
    assert not [part for part in FOREIGN for error in (failed, endless, empty) if part in str(error.value)]


def test_a_seed_that_has_no_effect_is_a_warning_with_the_argument_that_has(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        keras.utils.set_random_seed(711)
        training_job(tmp_path / "job", seed=3)
    (warning,) = (record.getMessage() for record in caplog.records if record.name == "everstep.engine.backend")
    assert warning.endswith("whose seed is 3: set seed")


def endless_data():
    """Returns batches without end."""
    from everstep.data.arrays import ArrayStream

    return ArrayStream((X, Y), 16, shuffle=False, seed=0, repeat=True)


def test_a_validation_loss_that_is_none(tmp_path, caplog):
    """Is a warning, one line per epoch; the job continues, because its weights are finite."""
    spoiled = X.copy()
    spoiled[0] = np.nan
    with caplog.at_level(logging.WARNING):
        history = training_job(tmp_path / "job").run_train((X, Y), (spoiled, Y), 2)
    warnings = [
        record.getMessage() for record in caplog.records if record.name == "everstep.projects.training.job_files"
    ]
    assert warnings == [f"the validation loss is nan in epoch {n} (the first is 0): check valid_ds" for n in (0, 1)]
    assert np.isfinite(history.history["loss"]).all()
