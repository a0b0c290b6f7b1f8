"""Whole runs on a store: killed, and resumed on another machine, to the same bits."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from tests.checkpoint.remote import remote_program
from tests.checkpoint.remote.machines import remote_steps
from tests.children import forked

from everstep.checkpoint.remote import local_view

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "second"))
    monkeypatch.setenv("EVERSTEP_UPLOAD_SECONDS", "1")


def start(place, url, folder):
    environment = {**os.environ, **place.environment(), "EVERSTEP_CACHE_DIR": str(folder / "first")}
    command = [sys.executable, "-m", "tests.checkpoint.remote.remote_program", url, str(folder)]
    with open(folder / "log", "wb") as log:
        return forked.Popen(command, cwd=ROOT, env=environment, stderr=log, stdout=log)


def until(happened, process, folder):
    deadline = time.monotonic() + 300
    while not happened():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows(path):
    return [line.split(",")[:2] for line in path.read_text().splitlines()]


def check_killed_in_an_upload(place, tmp_path, trouble):
    url = place.url()
    process = start(place, url, tmp_path)
    try:
        remote_program.train(tmp_path / "local")  # while the other process imports
        until(lambda: (tmp_path / "waiting").exists() and remote_steps(url) == [4], process, tmp_path)
        place.network.met, place.network.trouble_at, place.network.trouble = 0, "checkpoints/12/", trouble
        (tmp_path / "go").touch()
        until(lambda: place.network.met > 2, process, tmp_path)
    finally:
        process.kill()
        process.wait()
    place.network.trouble = place.network.trouble_at = ""
    assert 12 not in remote_steps(url)
    remote_program.train(url)
    assert 12 in remote_steps(url)
    seen = local_view(url)
    assert remote_program.digest(seen) == remote_program.digest(tmp_path / "local")
    assert rows(seen / "history.csv") == rows(tmp_path / "local" / "history.csv")
    attempts = json.loads((seen / "run.json").read_text())["attempts"]
    assert [one["reason"] for one in attempts] == ["killed", "done"]
    assert attempts[1]["from_step"] in (4, 8)


@pytest.mark.stores("s3")
def test_killed_in_an_upload_another_machine_ends_in_the_same_bits(place, tmp_path):
    check_killed_in_an_upload(place, tmp_path, "stall")


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.stores("s3", "gs")
@pytest.mark.parametrize("trouble", ["error", "truncate", "reset"])
def test_killed_in_an_upload_with_other_network_troubles(place, tmp_path, trouble):
    check_killed_in_an_upload(place, tmp_path, trouble)
