"""What a run that is killed again and again keeps, and how it counts that."""

import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.run.kept_work import goodput
from everstep.run.record import Run, read
from everstep.testing.reliability import goodput_under_kills

pytestmark = pytest.mark.slow

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


@pytest.mark.full
@pytest.mark.backend
def test_a_supervised_run_keeps_what_it_computes(tmp_path: Path) -> None:
    figures = goodput_under_kills.measure(tmp_path, BACKEND, period=8.0, kills=1, checkpoint_seconds=0.1)
    assert figures.passed(), figures.line()
    assert figures.kills == 1


def test_an_attempt_that_died_before_its_first_step_has_computed_none(tmp_path: Path) -> None:
    now = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)

    def later() -> datetime.datetime:
        nonlocal now
        now += datetime.timedelta(seconds=10)
        return now

    Run.open(tmp_path, "line", "jax", later).begin(0, "")
    beat = 50, now.timestamp() + 5
    for _ in range(2):  # both start from step 40; the first of them is killed while it compiles
        Run.open(tmp_path, "line", "jax", later).begin(40, "", beat=beat)
    attempts = read(tmp_path)["attempts"]
    assert [(one["from_step"], one["to_step"]) for one in attempts] == [(0, 50), (40, 40), (40, 40)]
    assert goodput(read(tmp_path)).steps_computed == 50


KILLED = """
import os, signal, sys
import keras, numpy as np
import everstep

class Kills(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((28, 2), "float32")
everstep.fit(model, x, x[:, :1], batch_size=4, epochs=5, callbacks=[Kills()], model_dir=sys.argv[1], verbose=2)
"""


@pytest.mark.full
def test_a_kill_is_counted_to_the_step(tmp_path: Path) -> None:
    """It comes before step 15 or, if the first epoch is not on disk by then, costs all 14 steps."""

    def train(kill_before: int) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-c", KILLED, str(tmp_path / "run"), str(kill_before)]
        return subprocess.run(words, capture_output=True, text=True)

    assert train(15).returncode == -signal.SIGKILL
    done = train(0)
    assert done.returncode == 0, done.stderr
    resumed = read(tmp_path / "run")["attempts"][1]["from_step"]
    assert resumed in (0, 7, 14)
    found = goodput(read(tmp_path / "run"))
    assert (found.steps_kept, found.steps_computed) == (35, 35 + 14 - resumed)
    assert f"goodput {found}" in done.stderr
