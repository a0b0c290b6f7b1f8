"""The commands of quick looks, in this process, or as a user runs them where a process is killed."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import pytest

from everstep.cli.main import main

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Runs `everstep …` here, in an empty directory, with experiments that can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE.parent / "cli")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    def run(*words):
        code = main([*words, "--import", "tiny_experiments", "--backend", keras.backend.backend()])
        return code, *capfd.readouterr()

    yield run
    assert not list((tmp_path / "temporary").glob("everstep*"))  # TensorFlow leaves files of its own


def test_fast_dev_run_keeps_nothing(command, tmp_path):
    code, out, _ = command("train", "tiny/line", "--fast-dev-run", "--model-dir", "mine")
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[:2] for line in lines[:6]] == [
        [name, "ok"] for name in ("build", "train", "evaluate", "save", "restore", "export")
    ]
    assert lines[6:] == ["one batch of everything works; nothing was kept"]
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]


def test_fast_dev_run_names_what_fails(command):
    code, out, err = command("train", "tiny/line", "task.units=3", "--fast-dev-run")
    assert (code, out.split()[:2]) == (1, ["build", "failed"])
    assert err == "everstep: error: --fast-dev-run: build failed: cannot fit 3 outputs\n"
    code, _, err = command("train", "tiny/line", "task.train_data.global_batch_size=99", "--fast-dev-run")
    assert code == 2
    assert err.startswith(
        "everstep: error: --fast-dev-run: build failed: task.train_data.global_batch_size: received 99"
    )


def test_learning_rate(command, tmp_path):
    words = ["tune", "learning-rate", "tiny/line", "--min", "1e-4", "--max", "1", "--steps", "40"]
    code, out, _ = command(*words, "--out", "rates.csv")
    assert code == 0
    assert re.search(
        r"^use trainer\.optimizer_config\.learning_rate\.constant\.learning_rate=\S+; nothing was set$", out, re.M
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rates.csv", "temporary"]
    pytest.importorskip("matplotlib")
    assert command(*words)[0] == 0
    assert {"learning-rate.csv", "learning-rate.png"} < {path.name for path in tmp_path.iterdir()}


def test_one_batch_size_alone(command):
    code, out, _ = command("tune", "batch-size", "tiny/line", "--only", "16")
    assert code == 0
    assert re.match(r'\{"tried": \{"size": 16, "fits": true, "samples_per_second": [\d.]+, "peak_bytes": \d+, ', out)


# -- as a user runs them ---------------------------------------------------------------------------------------------


def started_process(directory, *words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "everstep", *words, "--backend", keras.backend.backend()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=directory, env=environment, text=True, **pipes)


def sizes_in(out):
    """Returns which sizes fit and which do not."""
    rows = [line.split() for line in out.splitlines() if re.match(r" +\d+  (yes|no)", line)]
    return [{int(row[0]) for row in rows if row[1] == word} for word in ("yes", "no")]


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.timeout(600)
def test_the_largest_batch_that_fits(tmp_path):
    words = ["tune", "batch-size", "wide", "--import", "wide_experiments", "--start", "2048", "--memory", "2.5"]
    child = started_process(tmp_path, *words)
    out, err = child.communicate(timeout=580)
    print(out)
    assert child.returncode == 0, err
    fits, fails = sizes_in(out)
    assert fits
    assert fails
    assert max(fits) < min(fails) <= max(fits) + 1 + max(fits) // 16
    assert f"largest that fits: {max(fits)}; fastest: " in out
    assert re.search(r"^use task\.train_data\.global_batch_size=\d+; nothing was set$", out, re.M)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize(
    ("trouble", "code", "message"),
    [
        ("fixed", 2, "batch size 32: task.train_data.global_batch_size: received 32, but a batch has 16 samples"),
        ("bug", 1, "batch size 32: ended with exit code 1, but not for lack of memory"),
    ],
)
def test_other_errors_stop_the_search(tmp_path, trouble, code, message):
    child = started_process(
        tmp_path, "tune", "batch-size", "wide", "--import", "wide_experiments", f"task.trouble={trouble}"
    )
    _, err = child.communicate(timeout=300)
    assert child.returncode == code
    assert f"everstep: error: {message}" in err
    assert ("KeyError: 'a bug'" in err) == (trouble == "bug")


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_search_that_is_stopped_leaves_nothing_running(tmp_path, number, code):
    child = started_process(tmp_path, "tune", "batch-size", "wide", "--import", "wide_experiments")
    until = time.monotonic() + 300
    while not (tries := _children(child.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    child.send_signal(number)
    _, err = child.communicate(timeout=300)
    assert child.returncode == code
    assert err == f"everstep: {number.name}: the search is not finished; nothing was set\n"
    assert tries
    _wait_for_end(tries)


@pytest.mark.full
def test_a_search_that_is_killed_leaves_nothing_running(tmp_path):
    child = started_process(tmp_path, "tune", "batch-size", "wide", "--import", "wide_experiments")
    until = time.monotonic() + 300
    while not (tries := _children(child.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(8)  # a try watches its parent only once it has begun
    child.kill()
    child.communicate(timeout=300)
    assert tries
    _wait_for_end(tries)


def _wait_for_end(pids):
    """Waits until processes are gone, which takes a moment after their signals."""
    until = time.monotonic() + 300
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.1)


def _children(pid):
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def _is_alive(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
