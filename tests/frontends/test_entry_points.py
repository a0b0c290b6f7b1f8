"""One core under every entry point: the same weights, however the run was started, and also after a kill."""

import functools
import os
import signal
import sys
from pathlib import Path

import keras
import pytest
from entry_points import ENTRY_POINTS, KILL
from tests.children import forked

from everstep.run.record import read

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns a function that returns the record of an undisturbed run of an entry point, which is run once."""

    @functools.cache
    def record(name):
        return read(Path(ENTRY_POINTS[name].run(tmp_path_factory.mktemp(name))))

    return record


ON_TORCH = pytest.mark.daily("torch")  # the loop below all entry points is the same


@ON_TORCH
def test_the_same_weights_through_every_entry_point(whole):
    digests = {name: whole(name)["weights_digest"] for name in ENTRY_POINTS}
    assert len(set(digests.values())) == 1, digests


# `fit` is killed on every backend; on JAX tests/reliability/test_killed_runs.py kills an experiment, too.
DAILY = dict.fromkeys(ENTRY_POINTS, ON_TORCH) | {"fit": ()}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in DAILY.items()])
def test_killed_and_resumed(whole, name, tmp_path):
    """The third epoch is trained when the process is killed: it is trained again, to the same bits."""
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend(), KILL: str(tmp_path)}
    command = [sys.executable, str(Path(__file__).with_name("entry_points.py")), name, str(tmp_path)]
    killed = forked.run(command, env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    record = read(Path(ENTRY_POINTS[name].run(tmp_path)))
    first, second = record["attempts"]
    assert first["reason"] == "killed"
    assert second["from_step"] > 0
    assert record["digest"] == whole(name)["digest"]
    assert record["weights_digest"] == whole(name)["weights_digest"]
