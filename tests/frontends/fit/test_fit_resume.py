"""`everstep.fit` with callbacks that remember, ended anywhere and run again: as if nothing had happened."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fit_program
import keras
import numpy as np
import pytest
from fit_program import (
    DATA,
    EPOCHS,
    STEPS,
    TEST,
    Asks,
    AsksAtBatches,
    Cut,
    Noise,
    averaged,
    cutting,
    dropout_classifier,
    outcome_of_fit,
)

import everstep as es
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]


def whole(folder, **kwargs):
    with cutting("nowhere"):
        return outcome_of_fit(folder / "run", **kwargs)


def assert_same(folder, wanted, cuts, **kwargs):
    """Cuts a run at points, one after the other, and compares how it ends."""
    for at in cuts:
        with cutting(at), pytest.raises(Cut):
            outcome_of_fit(folder / "run", **kwargs)
    assert whole(folder, **kwargs) == wanted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return whole(tmp_path_factory.mktemp("whole"))


def test_the_run_is_worth_resuming(uninterrupted):
    """It stops early, some epochs after its best one, on a learning rate that fell more than once."""
    stopped, best, *_ = uninterrupted["stopped"]
    assert 6 < stopped < EPOCHS - 1
    assert best < stopped
    assert len(set(uninterrupted["rates"])) > 2
    assert uninterrupted["epochs"] == list(range(stopped + 1))
    assert len(uninterrupted["log"].splitlines()) == stopped + 2


@pytest.mark.full
def test_cut_inside_epochs_and_evaluations(tmp_path):
    """Hooks at every batch: between epochs, twice inside one, after a last step, in an evaluation, at the end."""
    several = {"every_batch": True, "epochs": 4}
    wanted = whole(tmp_path / "whole", **several)
    cuts = ["begin 5", "step 7", "step 8", "step 10", "evaluation 15", "step 20"]
    assert_same(tmp_path / "cut", wanted, cuts, **several)


@pytest.mark.full
def test_schedule_and_averages(tmp_path):
    """Each epoch begins once: the rate falls by a tenth an epoch, and the weights trained are not the averages."""
    with cutting("nowhere"):
        wanted = averaged(tmp_path / "whole" / "run")
    for at in ("begin 5", "step 12", "evaluation 15"):
        with cutting(at), pytest.raises(Cut):
            averaged(tmp_path / "cut" / "run")
    with cutting("nowhere"):
        assert averaged(tmp_path / "cut" / "run") == wanted
    assert wanted[0]["learning_rate"] == pytest.approx([0.045, 0.0405, 0.03645, 0.032805])


@pytest.mark.full
def test_more_epochs_go_on_from_what_callbacks_know(tmp_path):
    with cutting("nowhere"):
        wanted, *_ = averaged(tmp_path / "whole" / "run")
        averaged(tmp_path / "more" / "run", epochs=2)
        history, *_ = averaged(tmp_path / "more" / "run")
    assert history["learning_rate"] == wanted["learning_rate"]
    assert history["val_loss"][:2] == wanted["val_loss"][:2]
    assert len(history["val_loss"]) == 4


def test_other_callbacks_are_refused(tmp_path):
    """Before anything is done, by the name of what is missing and what is new."""
    averaged_dir = tmp_path / "whole" / "run"
    with cutting("nowhere"):
        averaged(averaged_dir, epochs=1)
        before = {path: path.read_bytes() for path in averaged_dir.rglob("*") if path.is_file()}
        given = {"model_dir": averaged_dir, "epochs": 2, "batch_size": 8, "allow_change": ["task"]}
        with raises_problem(
            key="callbacks", reason="missing: LearningRateScheduler, .*ModelCheckpoint; unexpected: Asks"
        ):
            es.fit(dropout_classifier(), DATA, validation_data=TEST, callbacks=[Noise(), Asks("")], **given)
    assert {path: path.read_bytes() for path in averaged_dir.rglob("*") if path.is_file()} == before


@pytest.mark.full
def test_cut_where_no_hook_looks(uninterrupted, tmp_path):
    last = len(uninterrupted["epochs"]) * STEPS
    for end in (f"step {last}", f"evaluation {last}"):
        assert_same(tmp_path / end, uninterrupted, ["step 1", "step 5", "evaluation 10", "step 13", end])


@pytest.mark.full
def test_cut_without_validation(tmp_path):
    short = {"validation_data": None, "epochs": 3, "every_batch": True}
    wanted = whole(tmp_path / "whole", **short)
    assert_same(tmp_path / "cut", wanted, ["step 3", "step 5", "step 14", "step 15"], **short)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*conditioned on metric `val_loss`:UserWarning")  # Keras, of the other epochs
def test_cut_where_not_every_epoch_is_evaluated(tmp_path):
    """Nor is the last one, and the first is not 0: cut in and after epochs of both kinds."""
    short = {"epochs": 5, "initial_epoch": 2, "validation_freq": 2, "every_batch": True}
    wanted = whole(tmp_path / "whole", **short)
    assert (wanted["epochs"], len(wanted["history"]["val_loss"])) == ([2, 3, 4], 1)
    cuts = ["step 12", "step 15", "begin 15", "step 18", "step 20", "evaluation 20", "begin 20", "step 25"]
    assert_same(tmp_path / "cut", wanted, cuts, **short)


@pytest.mark.full
def test_cut_anywhere(tmp_path):
    short = {"every_batch": True, "epochs": 3}
    wanted = whole(tmp_path / "whole", **short)
    for step in range(1, 3 * STEPS + 1):
        assert_same(tmp_path / f"step {step}", wanted, [f"step {step}"], **short)
        if step % STEPS == 0:
            assert_same(tmp_path / f"evaluation {step}", wanted, [f"evaluation {step}"], **short)


# -- real signals ------------------------------------------------------------------------------------------------------


def asked(folder, deaths, ask, **kwargs):
    """Runs to the end, interrupted by signals."""
    for at in deaths:
        with pytest.raises(SystemExit) as left:
            outcome_of_fit(folder / "run", more=[ask(at)], **kwargs)
        assert left.value.code == 128 + signal.SIGTERM, at
    return outcome_of_fit(folder / "run", more=[ask("never")], **kwargs)


@pytest.mark.parametrize(
    "signals",
    [
        ["batch 1.2", "batch 1.4", "test 2.0", "test 3.1"],
        pytest.param(["begin 0", "end 0", "test 1", "batch 2.0", "end 2", "begin 3", "end 3"], marks=pytest.mark.full),
    ],
)
def test_asked_to_end(tmp_path, signals):
    """Inside an epoch, after its last step, inside an evaluation and the last one; in epoch hooks."""
    short = {"epochs": 4, "every_batch": True}
    wanted = asked(tmp_path / "whole", [], AsksAtBatches, **short)
    assert asked(tmp_path / "asked", signals, AsksAtBatches, **short) == wanted


@pytest.mark.full
def test_asked_to_end_where_no_hook_looks(uninterrupted, tmp_path):
    signals = ["begin 1", "test 2", "end 3", "begin 4", "end 4"]
    assert asked(tmp_path / "asked", signals, Asks) == asked(tmp_path / "whole", [], Asks) == uninterrupted


# -- real processes, killed --------------------------------------------------------------------------------------------


def attempt(model_dir, at):
    """Runs the program; returns what it printed, or None where it was killed."""
    command = [sys.executable, fit_program.__file__, str(model_dir), at]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parent)
    assert done.returncode == (-signal.SIGKILL if at else 0), done.stderr
    return None if at else json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_killed_when_it_stopped(uninterrupted, tmp_path):
    """In a process that resumes inside an epoch of another one."""
    with cutting("step 12"), pytest.raises(Cut):
        outcome_of_fit(tmp_path / "run")
    attempt(tmp_path / "run", "stopped")
    assert whole(tmp_path) == uninterrupted


@pytest.mark.full
@pytest.mark.parametrize(
    "deaths",
    [
        ["begin 0", "end 0", "begin 3", "end 3"],
        ["step 11", "step 12", "end 4", "stopped", "stopped"],
        ["finished", "finished"],
    ],
)
def test_killed_elsewhere(uninterrupted, tmp_path, deaths):
    """Before and after a checkpoint, several times inside an epoch, and when all but the record was done."""
    for at in deaths:
        attempt(tmp_path / "run", at)
    assert attempt(tmp_path / "run", "") == uninterrupted


class _Interrupted(Exception):
    pass


def _two_fits(folder, *, fails_in=None):
    """Trains a head, then the whole model, shuffled and without a seed for either fit; returns the weights."""
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    layers = [keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    for phase in ("head", "all"):

        def begin(epoch, logs=None, fails=phase == fails_in):
            if fails and epoch == 1:
                raise _Interrupted

        callbacks = [keras.callbacks.LambdaCallback(on_epoch_begin=begin)]
        layers[0].trainable = phase == "all"
        model.compile("adam", "mse")
        es.fit(model, x, 2 * x[:, :1], batch_size=8, epochs=3, model_dir=folder / phase, callbacks=callbacks, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("fails_in", ["head", pytest.param("all", marks=pytest.mark.full)])
def test_a_program_with_two_fits(tmp_path, fails_in):
    """The second fit draws the same order of data as without the interruption, wherever that was."""
    wanted = _two_fits(tmp_path / "whole")
    with pytest.raises(_Interrupted):
        _two_fits(tmp_path / "cut", fails_in=fails_in)
    for one, other in zip(_two_fits(tmp_path / "cut"), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    shutil.rmtree(tmp_path / "cut" / "all")  # as if it had ended between the two
    for one, other in zip(_two_fits(tmp_path / "cut"), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
