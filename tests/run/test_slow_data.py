"""Whole runs on data that is slow or never comes, in processes of their own that are stopped by SIGTERM.

Run as a program it trains: `python test_slow_data.py <directory> <what the data does>`.
"""

import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

STEPS = 60
SECONDS = 0.2  # to read one of the first slow batches; later ones take five times as long
LAST = 40  # the last batch that comes from a source that stops

# Every day an engine is stopped while its data is late (`check_does_not_wait_for_data_after_a_stop`), and runs are
# stopped by signals (tests/reliability/test_signals_answered.py).
pytestmark = [pytest.mark.backend, pytest.mark.full]


# -- the program -------------------------------------------------------------------------------------------------------


def batches(kind, behaviour):
    """Returns a source that draws from the global generators, prints what it does, and behaves as specified."""

    def source():
        for number in itertools.count(1):
            if behaviour == f"{kind} slow":
                time.sleep(SECONDS if number <= 10 else 5 * SECONDS)
            if behaviour == f"{kind} stops" and number > LAST:
                print("stopped", flush=True)
                threading.Event().wait()
            x = np.random.normal(size=(8, 4)).astype("float32") + random.random()
            print(kind, number, flush=True)
            yield x, x.sum(1, keepdims=True)
            if kind == "validation" and number == LAST + 10:
                return

    return source


def train(directory, behaviour, per_loop):
    import everstep as es
    from everstep.experiment import create_trainer
    from everstep.testing import models
    from everstep.testing.tasks import Regression

    class Task(Regression):
        def build_model(self):
            return models.mlp()

        def build_inputs(self, params, input_context=None):
            return batches("training" if params.is_training else "validation", behaviour)

    params = es.ExperimentConfig(
        task=es.TaskConfig(train_data=es.DataConfig(is_training=True), validation_data=es.DataConfig()),
        trainer=es.TrainerConfig(
            train_steps=STEPS,
            steps_per_loop=per_loop,
            validation_interval=STEPS,
            checkpoint_interval=STEPS,
            optimizer_config={
                "optimizer": {"type": "adam"},
                "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
            },
        ),
    )
    task = Task()

    def disturb(logs):
        """Moves a weight by what it draws: numbers that are not those of an uninterrupted run show in the weights."""
        bias = trainer.model.trainable_variables[-1]
        bias.assign(bias + 0.01 * (random.random() + np.random.random()))

    trainer = create_trainer(params, task, train=True, evaluate=True)
    es.run_experiment(task, params, directory, trainer=trainer, train_actions=[disturb], export=False)


# -- the tests ---------------------------------------------------------------------------------------------------------


def command(directory, behaviour, per_loop=STEPS):
    return [sys.executable, __file__, str(directory), behaviour, str(per_loop)]


def finished(directory, per_loop=STEPS):
    """Runs to the end on data that comes at once; returns the digest and the length of the history."""
    done = subprocess.run(command(directory, "quick", per_loop), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    record = json.loads((directory / "run.json").read_text())
    return record["digest"], (directory / "history.csv").read_text().count("\n")


def stopped(directory, behaviour, when, per_loop=STEPS):
    """Starts a run, sends SIGTERM after a line; returns its exit code, and what it printed after it, and its errors."""
    process = subprocess.Popen(
        command(directory, behaviour, per_loop), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert f"{when}\n" in process.stdout, process.stderr.read()
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        printed, errors = process.communicate(timeout=300)
        return process.returncode, printed, errors
    finally:
        process.kill()
        process.wait()


def saved_steps(directory):
    return [int(path.name) for path in Path(directory, "checkpoints").iterdir() if path.name.isdigit()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("whole") / "run")


def test_slow_training_data(tmp_path, uninterrupted):
    """It stops where it is: not at the end of its window, for which it would have to read for 50 seconds more."""
    code, _, errors = stopped(tmp_path / "run", "training slow", "training 10")
    assert code == 143, errors
    [step] = saved_steps(tmp_path / "run")
    assert 0 < step < STEPS
    assert finished(tmp_path / "run") == uninterrupted


def test_training_data_that_stops(tmp_path, uninterrupted):
    code, _, errors = stopped(tmp_path / "run", "training stops", "stopped")
    assert code == 143, errors
    [step] = saved_steps(tmp_path / "run")
    assert 0 < step <= LAST
    [attempt] = json.loads((tmp_path / "run" / "run.json").read_text())["attempts"]
    assert attempt["reason"] == "SIGTERM"
    assert "has not responded for 2 s" in errors
    assert finished(tmp_path / "run") == uninterrupted


def test_training_data_that_stops_before_an_action(tmp_path):
    """The window is done, and its action waits for a reader that holds the random generators."""
    wanted = finished(tmp_path / "whole", LAST)
    code, _, errors = stopped(tmp_path / "run", "training stops", "stopped", LAST)
    assert code == 143, errors
    assert finished(tmp_path / "run", LAST) == wanted


@pytest.mark.parametrize(("behaviour", "when"), [("validation slow", "validation 8"), ("validation stops", "stopped")])
def test_validation_data(tmp_path, uninterrupted, behaviour, when):
    code, printed, errors = stopped(tmp_path / "run", behaviour, when)
    assert code == 143, errors
    assert f"validation {LAST + 10}\n" not in printed, "it has read to the end"
    assert saved_steps(tmp_path / "run") == [STEPS]
    assert finished(tmp_path / "run") == uninterrupted


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
