"""W&B's own package and service: files that its reader understands, and a stand-in for its server on this machine."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from tests.servers.wandb_server import KEY, WandbServer

from everstep import storage
from everstep.cli.main import main
from everstep.testing.problems import raises_problem
from everstep.tracking.samples import SampleFiles
from everstep.tracking.syncing import sync_wandb
from everstep.tracking.tracker import MultiTracker
from everstep.tracking.wandb import WandbTarget, make_target

from .wandb_samples import PROGRAM, folders, make_tracker, records, rows

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_account(tmp_path, monkeypatch):
    """No account, no settings of the machine, and a server that does not exist: nothing can be sent."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def server(monkeypatch):
    with WandbServer() as one:
        monkeypatch.setenv("WANDB_BASE_URL", one.uri)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield one


def until(condition, seconds=300):
    """Waits until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.05)


def processes(run):
    """The command lines of W&B's processes that work for a run: their files lie open in its directory."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            opened = [os.readlink(link) for link in (folder / "fd").iterdir()]
        except OSError:
            continue
        if "wandb" in command and any(path.startswith(str(run)) for path in opened):
            found.append(command)
    return found


def test_two_attempts_are_one_run_in_one_file(run, capfd):
    """Everything at once, because W&B's processes take a second or two to start."""
    first = make_tracker(
        run, params={"trainer": {"train_steps": 10, "rates": [0.1, math.inf]}}, tags={"backend": "jax"}
    )
    before = set(sys.modules)
    first.start(0)
    first.log(10, {"loss": 0.5, "nan": math.nan, "inf": -math.inf}, "train")
    first.log(10, {"loss": 0.75, "validation_accuracy": 1.0}, "validation")
    first.log(20, {"loss": 0.4}, "train")
    first.finish("interrupted")
    first.close()
    assert len(rows(run)) == 3
    second = MultiTracker([SampleFiles(run), make_tracker(run, params={"trainer": {"train_steps": 30}})])
    second.start(10)
    second.log(20, {"loss": 0.4}, "train")  # computed again
    second.log_images(20, "seen", [np.zeros((8, 8), np.uint8)], ["truth 1"])
    second.log_text(20, "said", ["a < b"])
    second.log_histograms(20, {"dense/kernel": np.arange(4.0)})
    second.log(30, {"loss": 0.3}, "train")
    second.close()
    numbers = rows(run)
    assert [row["global_step"] for row in numbers] == [10, 10, 20, 20, 20, 20, 30]
    assert numbers[0] == {"global_step": 10, "loss": 0.5, "nan": "NaN", "inf": "-Infinity"}
    assert numbers[1] == {"global_step": 10, "validation_loss": 0.75, "validation_accuracy": 1.0}
    assert numbers[3]["seen._type"] == "images/separated"
    assert numbers[3]["seen.captions"] == ["truth 1"]
    assert numbers[4]["said._type"] == "html-file"
    assert sum(numbers[5]["weights/dense/kernel.values"]) == 4
    read = records(run)
    times = [record["history"]["item"]["_timestamp"] for record in read if record["type"] == "history"]
    assert times == sorted(times)
    assert times[0] < times[-1] - 0.5  # when it was logged, not when the file was written anew
    config = [record["config"]["update"] for record in read if record["type"] == "config"]
    assert config[0]["trainer"] == {"train_steps": 10, "rates": [0.1, "inf"]}
    assert config[0]["everstep"] == {"backend": "jax"}
    assert config[-1]["trainer"]["train_steps"] == 30
    assert [record["exit"] for record in read if record["type"] == "exit"][0].get("exit_code", 0) == 0
    assert any(record["metric"].get("step_metric") == "global_step" for record in read if record["type"] == "metric")
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] == "wandb"}
    assert capfd.readouterr() == ("", "")
    until(lambda: not processes(run))
    assert sync_is_done(run)


def sync_is_done(run):
    return storage.read_json(run / "spool" / "wandb.sent.json")["offset"] == (run / "spool/wandb.jsonl").stat().st_size


def test_without_an_account_files_are_kept_and_sent_later(run, monkeypatch, caplog, capsys):
    tracker = make_tracker(run, "online")
    tracker.start(0)
    tracker.log(1, {"loss": 0.5}, "train")
    until(lambda: caplog.messages)
    tracker.log(2, {"loss": 0.25}, "train")
    tracker.close()
    (line,) = caplog.messages
    assert line == (
        f"W&B: no API key, so the run is kept in {run}/wandb; to send it: wandb login, then everstep runs sync {run}"
    )
    assert [row["global_step"] for row in rows(run)] == [1, 2]
    storage.write_json(run / "run.json", {"id": "someone"})
    assert main(["runs", "sync", str(run)]) == 1
    assert "no API key: wandb login, or set WANDB_API_KEY" in capsys.readouterr().err
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.uri)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        address = server.uri.removeprefix("https://")
        for sent in (2, 0):
            assert main(["runs", "sync", str(run)]) == 0
            assert capsys.readouterr().out == f"{sent} points sent to W&B ({address}/mnist-local), 0 wait\n"
        assert [row["loss"] for row in server.rows("someone")] == [0.5, 0.25]
        assert (server.runs["someone"]["exit"], server.runs["someone"]["displayName"]) == (0, "run")


def test_each_row_arrives_once_whatever_is_killed(run, server):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(run), "online"]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as process:
        process.stdout.readline()
        until(lambda: "someone" in server.runs)
        process.send_signal(signal.SIGKILL)
    until(lambda: not processes(run))  # its processes notice, and end by themselves
    resumed = make_tracker(run, "online", tags={"backend": "jax"})
    resumed.start(100)
    for step in range(101, 301):
        resumed.log(step, {"loss": 1 / step}, "train")
    resumed.close()
    got = server.rows("someone")
    assert [row["global_step"] for row in got] == list(range(1, 301))
    assert [row["loss"] for row in got] == pytest.approx([1 / step for step in range(1, 301)])
    assert (server.runs["someone"]["exit"], server.runs["someone"]["tags"]) == (0, ["jax"])
    assert len(folders(run)) == 1


@pytest.mark.full
def test_a_server_that_is_down_does_not_delay_training(run, server, caplog):
    server.down = True
    tracker = make_tracker(run, "online", close_seconds=2)
    tracker.start(0)
    begin = time.monotonic()
    for step in range(1, 201):
        tracker.log(step, {"loss": 1 / step}, "train")
    assert time.monotonic() - begin < 25, "less than W&B waits for its server"
    tracker.close()
    took = time.monotonic() - begin
    print(f"closed after {took:.1f} s")
    assert took < 25
    assert "200 points and the end of the run wait for W&B in" in caplog.text
    until(lambda: not processes(run))
    server.down = False
    result = sync_wandb(run)
    assert (result.sent, result.waiting, result.problem) == (200, 0, None)
    assert len(server.rows("someone")) == 200


@pytest.mark.full
def test_a_server_that_is_down_in_between(run, server):
    tracker = make_tracker(run, "online")
    tracker.start(0)
    tracker.log(1, {"loss": 1.0}, "train")
    until(lambda: "someone" in server.runs)
    server.down = True
    for step in range(2, 101):
        tracker.log(step, {"loss": 1 / step}, "train")
    time.sleep(1)
    server.down = False
    tracker.close()
    sync_wandb(run)
    assert [row["global_step"] for row in server.rows("someone")] == list(range(1, 101))


@pytest.mark.full
def test_a_process_that_dies_is_restarted(run, caplog):
    tracker = make_tracker(run)
    tracker.start(0)
    tracker.log(1, {"loss": 1.0}, "train")
    until(lambda: folders(run))
    tracker._run._process.kill()
    tracker.log(2, {"loss": 0.5}, "train")
    until(lambda: "is back" in caplog.text)
    tracker.close()
    assert "W&B cannot be reached (its process ended" in caplog.text
    assert [row["global_step"] for row in rows(run)] == [1, 2]


@pytest.mark.parametrize(
    ("environment", "mode", "expected"),
    [
        ({}, "", WandbTarget("i", "mnist-local", "", "online", "n")),
        ({"WANDB_MODE": "offline"}, "", WandbTarget("i", "mnist-local", "", "offline", "n")),
        ({"WANDB_MODE": "dryrun"}, "", WandbTarget("i", "mnist-local", "", "offline", "n")),
        ({"WANDB_MODE": "offline", "WANDB_PROJECT": "p"}, "online", WandbTarget("i", "p", "", "online", "n")),
        ({"WANDB_ENTITY": "team"}, "offline", WandbTarget("i", "mnist-local", "team", "offline", "n")),
    ],
)
def test_empty_settings_come_from_the_environment(environment, mode, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert make_target("i", "mnist/local", "n", "", "", mode) == expected


def test_a_missing_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises_problem(reason="needs the package 'wandb'", remedy=r"pip install .*\[wandb\]'"):
        make_target("i", "mnist/local", "n", "", "", "")


def test_sync_of_a_run_that_was_not_tracked(run, capsys):
    storage.write_json(run / "run.json", {"id": "someone"})
    assert main(["runs", "sync", str(run)]) == 2
    assert "was not tracked on a server" in capsys.readouterr().err
    with raises_problem(key="DIR", reason="was not tracked with W&B"):
        sync_wandb(run)
