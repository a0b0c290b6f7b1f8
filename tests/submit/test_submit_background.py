"""Background jobs: they survive their terminal, are restarted, and save when a stop is requested."""

import json
import os
import signal
from pathlib import Path

import pytest
from submit_place import Place, until

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def job(printed: str) -> int:
    return int(printed.split()[1])


def test_a_background_job(place: Place) -> None:
    """Submitted, refused a second time, killed, restarted, stopped."""
    pid = job(place.submit(60, "--max-restarts", "3"))
    assert os.getsid(pid) == pid, "a terminal that closes takes its session with it"
    until(lambda: place.has_steps(3))
    assert f"is already submitted: background {pid} is active: kill {pid} ends it" in place.submit(60, code=2)

    one = place.listed()
    assert (one["state"], one["train_steps"], len(one["attempts"])) == ("running", 1200, 1)
    assert one["steps_done"] >= 3
    assert 0 < one["seconds_left"] < 600
    assert one["submission"]["job"] == str(pid)

    os.kill(place.trainer(), signal.SIGKILL)
    until(lambda: len(place.record()["attempts"]) == 2 and place.has_steps())
    assert place.record()["attempts"][0]["reason"] == "SIGKILL"

    os.kill(pid, signal.SIGTERM)
    (snapshot,) = (place.run / "submissions").iterdir()
    until(lambda: (snapshot / "ended.json").exists())
    assert json.loads((snapshot / "ended.json").read_text())["code"] == 143
    assert place.record()["status"] == "interrupted"
    assert place.log("out").count("version first") == 2
    assert "restart 1 of 3" in place.log("err")
    assert place.listed()["state"] == "interrupted"


def test_a_killed_job_is_not_shown_as_running(place: Place) -> None:
    pid = job(place.submit(60))
    until(place.has_steps)
    trainer = place.trainer()
    launcher = int(Path(f"/proc/{trainer}/stat").read_text().rpartition(")")[2].split()[1])
    for process in (pid, launcher, trainer):
        os.kill(process, signal.SIGKILL)
    until(lambda: place.listed()["state"] == "killed")
    assert place.record()["status"] == "running", "the record cannot know"


def test_a_run_that_another_process_trains_is_refused(place: Place) -> None:
    from everstep.run.lock import RunLock

    place.run.mkdir(parents=True)
    with RunLock(place.run):
        assert f"is being trained by process {os.getpid()}" in place.submit(1, code=2)
    assert not (place.run / "submissions").exists()
