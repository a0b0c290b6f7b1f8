"""Runs repeated in processes of their own: identical, or the cause is named."""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from everstep.run.lock import last_beat
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

UNSEEDED = """
import os


def unseeded(shape, dtype=None):
    numbers = np.frombuffer(os.urandom(16), "uint32").reshape(shape)
    return keras.ops.convert_to_tensor(numbers / 2.0**32, "float32")
"""


@pytest.mark.full
def test_identical_although_the_code_has_changed(place):
    path = place.folder / "reproduce_experiment.py"
    path.write_text(path.read_text() + "\n\nNOTHING = 1\n")
    before = everything(place)
    found = place.again()
    assert found.lines()[0] == "identical: the weights after step 8 and 6 logged numbers agree"
    assert [cause.kind for cause in found.others] == ["code"]
    assert everything(place) == before


def everything(place):
    """All files, with their contents: the run, the repository and the project are only read."""
    files = (path for path in place.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path: path.read_bytes() for path in files}


@pytest.mark.full
def test_one_byte_of_the_data(place):
    with np.load(place.folder / "points.npz") as points:
        x, y = points["x"].copy(), points["y"]
    x.view("uint8")[0, 2] ^= 64
    np.savez(place.folder / "points.npz", x=x, y=y)
    found = place.again(steps=5)
    assert not found.identical
    assert found.lines()[0] == "different, data: train/0 has other content"
    assert found.outcome.difference.startswith("step 4: ")
    assert found.notes == ("--steps 5: steps that can be checked: 4, 8",)


@pytest.mark.full
def test_missing_data(place):
    (place.folder / "points.npz").unlink()
    done = place.everstep("reproduce", "first")
    assert done.returncode == 2
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("everstep: error: ")]
    assert "points.npz" in message
    assert "the weights kept of step 8 are those of the record" in message
    assert not done.stdout


@pytest.mark.full
def test_a_part_is_proven_and_kept(place):
    code, verdict = place.reproduce("--steps=6", "--model-dir=again")
    assert (code, verdict["verdict"], verdict["weights_compared_at"]) == (0, "identical", 4)
    assert place.record("again")["step"] >= 4
    assert place.reproduce("--model-dir=again")[0] == 2


@pytest.mark.full
def test_other_code_is_proven_to_be_the_cause(place):
    place.rewrite("reproduce_rate.py", "0.5", "0.4")
    found = place.again()
    assert (found.cause.kind, found.notes) == ("code", ("with the code of the record it is identical",))
    assert found.outcome.difference.startswith("step 4: training_loss was ")


@pytest.mark.full
def test_other_code_that_cannot_be_brought_back(place):
    place.rewrite("reproduce_rate.py", "0.5", "0.4")
    (place.folder / "first" / "code.diff").unlink()
    found = place.again()
    assert found.cause.kind == "code"
    assert "the patch is missing" in found.notes[0]
    assert found.notes[1] == "done twice, it is the same both times"


@pytest.mark.full
def test_deleted_code_is_restored(place):
    (place.folder / "reproduce_experiment.py").unlink()
    found = place.again()
    assert found.cause.kind == "code"
    assert found.outcome.difference.startswith("its start: here ")
    place.folder.joinpath(".git").rename(place.folder / "moved")
    code, verdict = place.reproduce()
    assert code == 2
    message = verdict["error"]
    assert "\n" not in message
    assert "reproduce_experiment" in message
    assert "the code of the record cannot be tried" in message


@pytest.mark.full
def test_an_edited_seed_is_found_out(place):
    place.rewrite("first/config.yaml", "seed: 3", "seed: 4")
    code, verdict = place.reproduce()
    assert (code, verdict["cause"]["kind"]) == (1, "seed")
    assert verdict["cause"]["what"] == "runtime.seed was 3, now it is 4"


@pytest.mark.full
def test_something_unseeded_is_called_randomness(place):
    place.rewrite("reproduce_experiment.py", "dense(1)]", "dense(1, kernel_initializer=unseeded)]")
    place.rewrite("reproduce_experiment.py", "import numpy as np\n", f"import numpy as np\n{UNSEEDED}")
    place.train()
    found = place.again()
    assert found.cause.kind == "randomness"
    assert "it differs from itself" in found.cause.what
    assert found.notes[0].startswith("twice: step 4: ")


@pytest.mark.full
def test_something_that_is_not_recorded(place):
    rate = place.folder / "rate.txt"
    place.rewrite("reproduce_rate.py", "RATE = 0.5", "RATE = float(open('rate.txt').read())")
    rate.write_text("0.5")
    place.train()
    rate.write_text("0.4")
    found = place.again(steps=4)
    assert found.cause.kind == "unrecorded"
    assert found.notes == ("done twice, it is the same both times",)


@pytest.mark.full
def test_a_configuration_of_another_version(place):
    place.rewrite("first/config.yaml", "train_steps: 8", "train_steps: 8\n  trained_stops: 8")
    code, verdict = place.reproduce()
    assert code == 2
    assert "trained_stops" in verdict["error"]
    assert "\n" not in verdict["error"]


@pytest.mark.full
def test_a_run_that_was_killed_and_resumed(place):
    killed = started_process(place, steps=400)
    killed.kill()
    killed.wait()
    assert place.everstep(*place.words()).returncode == 0
    assert [attempt["reason"] for attempt in place.record()["attempts"]] == ["killed", "done"]
    found = place.again()
    assert (found.identical, found.outcome.weights, found.outcome.numbers) == (True, 400, 300)


@pytest.mark.full
def test_of_a_run_that_did_not_end_a_part(place):
    """It would train for days: a partial repetition does not wait for the rest."""
    stopped = started_process(place, steps=100_000_000)
    stopped.send_signal(signal.SIGTERM)
    stopped.wait()
    with raises_problem(reason="did not finish", remedy="--steps"):
        place.again()
    step = place.record()["step"]
    found = place.again(steps=step)
    assert found.identical
    assert 40 <= found.outcome.weights <= step


def started_process(place, steps):
    """Returns the process of a run that has reached step 40."""
    shutil.rmtree(place.folder / "first")
    place.rewrite("reproduce_experiment.py", '"train_steps": 8', f'"train_steps": {steps}')
    command = [sys.executable, "-m", "everstep", *place.words()]
    process = subprocess.Popen(command, cwd=place.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 600
    while (last_beat(place.folder / "first") or (0, 0.0))[0] < 40:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    return process
