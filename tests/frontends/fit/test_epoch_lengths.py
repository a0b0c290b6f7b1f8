"""Epochs of unknown length, and `steps_per_epoch` that does not fit the data: as in Keras, and resumed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from fit_program import Cut, cutting, outcome_of_fit
from fit_program import X as SAMPLES
from fit_program import Y as LABELS
from keras import callbacks, layers

import everstep as es
from everstep.errors import BadDataError
from everstep.loop.schedule import UNKNOWN_END, EpochSchedule
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_export")]

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SIZE, BATCHES = 4, 10


@pytest.mark.parametrize(("steps", "batches"), [(None, 5), (3, 10), (4, 8), (12, 5), (1, 3), (7, None)])
def test_every_step_belongs_to_one_epoch(steps, batches):
    lengths = EpochSchedule(9, steps, batches)
    ends = list(itertools.accumulate(itertools.islice(_keras_lengths(steps, batches), 9)))
    for step in range(ends[-1]):
        epoch = next(i for i, end in enumerate(ends) if step < end)
        first = ([0, *ends])[epoch]
        assert lengths.epoch_of(step) == epoch
        assert (lengths.current_epoch_start(step), lengths.window_end(step)) == (first, ends[epoch])
        assert lengths.epoch_start(epoch) == first
        assert lengths.steps_done_in_epoch(step + 1) == step + 1 - first


def _keras_lengths(steps, batches):
    while True:
        left = batches or steps
        while left:
            yield min(steps or batches, left)
            left -= min(steps or batches, left)


def test_open_lengths():
    lengths = EpochSchedule(9, None, first_epoch=3)
    assert (lengths.window_end(7), lengths.epoch_of(7), lengths.epoch_start(3), lengths.epoch_start(4)) == (
        UNKNOWN_END,
        3,
        0,
        None,
    )
    assert not lengths.is_regular
    lengths.set_batches(8)
    assert (lengths.window_end(7), lengths.epoch_of(8), lengths.epoch_start(5)) == (8, 4, 16)


# -- against Keras -----------------------------------------------------------------------------------------------------


class Count(callbacks.Callback):
    """How many steps each epoch has, and whether batches are numbered from 0 in each."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(0)

    def on_train_batch_end(self, batch, logs=None):
        assert batch == self.steps[-1]
        self.steps[-1] += 1


def generated():
    for begin in range(0, 40, SIZE):
        yield X[begin : begin + SIZE], Y[begin : begin + SIZE]


class Again:
    def __iter__(self):
        return generated()


def of_tensorflow():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(SIZE).filter(lambda x, y: True)


def of_grain():
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(list(zip(X, Y, strict=True))).to_iter_dataset().batch(SIZE)


def of_torch():
    torch = pytest.importorskip("torch")

    class Samples(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    return torch.utils.data.DataLoader(Samples(), batch_size=SIZE)


def linear_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def outcome(fit, *args, watched=True, **kwargs):
    """Returns steps of each epoch, losses, weights and how often a warning was given that the data ran out."""
    model, count = linear_model(), Count()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = fit(model, *args, verbose=0, callbacks=[count] if watched else [], **kwargs)
    ran_out = sum("ran out of data" in str(warning.message) for warning in caught)
    return count.steps, history.history["loss"], model.get_weights(), ran_out


def assert_alike(ours, theirs, steps=True):
    assert not steps or ours[0] == theirs[0]
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)
    for one, other in zip(ours[2], theirs[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.backend
@pytest.mark.parametrize("steps", [3, 5, 12])
def test_steps_per_epoch_that_does_not_fit(steps):
    given = {"steps_per_epoch": steps, "batch_size": SIZE, "epochs": 5, "shuffle": False}
    theirs = outcome(keras.Model.fit, X, Y, **given)
    for watched in (True, False):
        ours = outcome(es.fit, X, Y, watched=watched, **given)
        assert_alike(ours, theirs, watched)
        assert ours[3] == theirs[3]


@pytest.mark.backend
@pytest.mark.parametrize("source", [lambda: generated, Again, of_tensorflow, of_grain, of_torch])
def test_first_epoch_finds_the_length(source):
    theirs = outcome(keras.Model.fit, X, Y, batch_size=SIZE, epochs=3, shuffle=False)
    ours = outcome(es.fit, source(), epochs=3)
    assert_alike(ours, theirs)
    assert ours[3] == 0


@pytest.mark.backend
def test_steps_per_epoch_of_data_of_unknown_length():
    theirs = outcome(keras.Model.fit, of_tensorflow(), epochs=5, steps_per_epoch=4)
    ours = outcome(es.fit, of_tensorflow(), epochs=5, steps_per_epoch=4)
    assert_alike(ours, theirs)
    assert (ours[0], ours[3]) == ([4, 4, 2, 4, 4], theirs[3])


@pytest.mark.backend
@pytest.mark.parametrize("given", [{}, {"steps_per_epoch": 4, "epochs": 2}, {"steps_per_epoch": 4, "epochs": 3}])
def test_a_generator_is_read_as_by_keras(given):
    assert_alike(outcome(es.fit, generated(), **given), outcome(keras.Model.fit, generated(), **given))


@pytest.mark.parametrize("given", [{}, {"steps_per_epoch": 5}])
def test_a_generator_that_is_used_up_ends_training(given):
    steps, *_, ran_out = outcome(es.fit, generated(), epochs=3, **given)
    assert (sum(steps), all(steps), ran_out) == (BATCHES, True, 1)


def test_initial_epoch_of_unknown_length():
    steps, *_ = outcome(es.fit, generated, epochs=3, initial_epoch=1)
    assert steps == [10, 10]


@pytest.mark.backend
@pytest.mark.parametrize("steps", [3, 12])
def test_validation_steps_that_do_not_fit(steps):
    given = {
        "batch_size": SIZE,
        "validation_batch_size": SIZE,
        "shuffle": False,
        "epochs": 2,
        "validation_steps": steps,
    }
    theirs, ours = ([], [])
    for fit, seen in ((keras.Model.fit, theirs), (es.fit, ours)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = fit(linear_model(), X, Y, validation_data=(X, Y), verbose=0, **given)
        seen += [history.history["val_loss"], sum("ran out of data" in str(one.message) for one in caught)]
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    assert ours[1] == theirs[1]


@pytest.mark.backend
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch has no steps_per_execution")
def test_batch_hooks_of_several_steps_and_unknown_length():
    def hooks(fit, data):
        seen = []

        class Sees(callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen.append(batch)

        model = linear_model()
        model.compile("sgd", "mse", steps_per_execution=4)
        fit(model, data, epochs=2, verbose=0, callbacks=[Sees()])
        return seen

    assert hooks(es.fit, generated) == hooks(es.fit, of_tensorflow()) == [3, 7, 11, 3, 7, 11]


def endless():
    while True:
        yield X[:SIZE], Y[:SIZE]


@pytest.mark.backend
def test_validation_reads_a_generator_on():
    seen = []

    def numbered():
        for number in itertools.count():
            seen.append(number)
            yield X[:SIZE], Y[:SIZE]

    history = es.fit(
        linear_model(),
        endless(),
        steps_per_epoch=2,
        epochs=3,
        validation_data=numbered(),
        validation_steps=4,
        verbose=0,
    )
    assert len(history.history["val_loss"]) == 3
    assert seen == list(range(12))


def test_data_without_end_is_refused():
    import tensorflow as tf

    data = of_tensorflow().repeat()
    for key, reason, given in (
        ("steps_per_epoch", "the data has no end", {"x": data}),
        ("validation_steps", "the validation data has no end", {"x": X, "y": Y, "validation_data": data}),
        (
            "validation_data",
            "a generator can be read only once, but there are 2 evaluations",
            {"x": X, "y": Y, "epochs": 2, "validation_data": generated()},
        ),
    ):
        with raises_problem(key=key, reason=reason):
            es.fit(linear_model(), **given, verbose=0)
    assert isinstance(data, tf.data.Dataset)


# -- resumed -----------------------------------------------------------------------------------------------------------


def batches():
    for begin in range(0, 40, 8):
        yield SAMPLES[begin : begin + 8], LABELS[begin : begin + 8]


@pytest.mark.backend
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("given", "cuts"),
    [
        ({"epochs": 3}, ["step 2", "begin 5", "step 8"]),
        pytest.param({"epochs": 3}, ["step 5", "evaluation 5", "step 10"], marks=pytest.mark.full),
        pytest.param(
            {"epochs": 4, "steps_per_epoch": 3},
            ["step 2", "step 3", "begin 3", "step 5", "begin 5", "evaluation 5", "step 7", "step 10"],
            marks=pytest.mark.full,
        ),
    ],
)
def test_cut_anywhere_and_resumed(tmp_path, given, cuts):
    """In the first epoch, at its last step, when the length is not known yet, and later: the same bits."""
    given = {"data": batches, "every_batch": True, **given}
    with cutting("nowhere"):
        wanted = outcome_of_fit(tmp_path / "whole" / "run", **given)
    for at in cuts:
        with cutting(at), pytest.raises(Cut):
            outcome_of_fit(tmp_path / "cut" / "run", **given)
    with cutting("nowhere"):
        assert outcome_of_fit(tmp_path / "cut" / "run", **given) == wanted


PROGRAM = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[3])
import keras
from test_epoch_lengths import linear_model, generated, SIZE
import everstep as es

class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

es.fit(linear_model(), generated, epochs=3, steps_per_epoch=4, callbacks=[Dies()], model_dir=sys.argv[1], verbose=0)
"""


@pytest.mark.full
@pytest.mark.backend
def test_killed_and_resumed(tmp_path):
    """SIGKILL inside the first epoch, in the one that finds the length, and behind it."""

    def attempt(folder, at):
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", PROGRAM, str(folder), str(at), here]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ)
        assert done.returncode == (-signal.SIGKILL if at else 0), done.stderr

    attempt(tmp_path / "whole", 0)
    for at in (2, 7, 9):
        attempt(tmp_path / "killed", at)
    attempt(tmp_path / "killed", 0)
    digests = [json.loads((tmp_path / name / "run.json").read_text())["digest"] for name in ("whole", "killed")]
    assert digests[0] == digests[1]


def test_a_generator_with_a_directory_says_what_a_resume_needs(tmp_path, capfd):
    history = es.fit(linear_model(), generated(), model_dir=tmp_path / "run", verbose=1)
    assert "the train data does not resume exactly" in capfd.readouterr().err
    assert len(history.epoch) == 1
    again = es.fit(linear_model(), generated(), model_dir=tmp_path / "run", verbose=0)  # nothing is left to train
    assert again.history == history.history
    with raises_problem(BadDataError, remedy="pass the function that returns it"):
        es.fit(linear_model(), generated(), epochs=2, model_dir=tmp_path / "run", verbose=0)
    more = es.fit(linear_model(), generated, epochs=2, model_dir=tmp_path / "run", verbose=0)
    assert more.epoch == [0, 1]
