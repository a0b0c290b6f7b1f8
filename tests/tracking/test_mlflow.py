"""A real `mlflow server`, down, paused, failing and back: training waits for none of it, and no point is lost."""

import contextlib
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from everstep import storage
from everstep.cli.main import main
from everstep.testing.problems import raises_problem
from everstep.testing.servers.mlflow_server import MlflowServer, client_of, memory_folder, runs_of
from everstep.testing.servers.proxy import Proxy, free_port
from everstep.tracking.delivery import SendDelays
from everstep.tracking.mlflow import MlflowNames, MlflowTracker
from everstep.tracking.syncing import sync
from everstep.tracking.tracker import BackgroundTracker

from .mlflow_samples import PROGRAM, arrived, assert_nobody_waited, assert_recorded, train, until

QUICK = SendDelays(after_success=0.02, after_failure=0.05, longest=0.2)
# MLflow's database code under the newest SQLAlchemy; it is not ours to change.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")]


@pytest.fixture(scope="module", autouse=True)
def short_requests():
    """One request gives up after a second, so that a test need not wait for ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="module")
def starting():
    """A server that has been started and may not answer yet."""
    with memory_folder() as folder, MlflowServer(folder).running() as server:
        yield server


@pytest.fixture
def server(starting):
    starting.wait()
    yield starting
    starting.resume()


@pytest.fixture
def proxy(server):
    with Proxy(server.uri) as between:
        yield between


@pytest.fixture
def make_tracker(tmp_path):
    """Makes trackers of one run, and closes them."""
    with contextlib.ExitStack() as stack:

        def make_one(uri, params=None, tags=None, **options):
            options = {"delays": QUICK, "close_seconds": 20, **options}
            names = MlflowNames(tmp_path.name, params=params or {}, tags=tags or {})
            tracker = MlflowTracker(tmp_path / "run", tmp_path.name, names, uri, **options)
            stack.callback(tracker.close)
            return tracker

        yield make_one


def test_down_at_the_start(starting, make_tracker, tmp_path, caplog):
    tracker = make_tracker(
        starting.uri, params={"trainer": {"train_steps": 200}}, tags={"backend": "jax", "attempt": 1}
    )
    tracker.start(0)
    assert_nobody_waited(train(tracker, range(1, 201)))
    starting.wait()
    tracker.finish("finished")
    until(lambda: "is back" in caplog.text)
    tracker.close()
    run = assert_recorded(starting.uri, tmp_path.name, range(1, 201))
    assert run.data.params == {"trainer.train_steps": "200"}
    tags = {"backend": "jax", "attempt": "1", "everstep.run_id": tmp_path.name, "mlflow.runName": "run"}
    assert run.data.tags == tags
    assert run.info.status == "FINISHED"
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "cannot be reached" in caplog.messages[0]


def test_paused_in_the_middle(server, make_tracker, tmp_path):
    tracker = make_tracker(server.uri)
    tracker.start(0)
    train(tracker, range(1, 101))
    until(lambda: runs_of(server.uri, tmp_path.name))
    server.pause()
    assert_nobody_waited(train(tracker, range(101, 301), pause=0.005))  # for longer than a request may take
    server.resume()
    tracker.close()
    assert_recorded(server.uri, tmp_path.name, range(1, 301))


@pytest.mark.parametrize("fault", ["refuse", "error", "lose_answers"])
def test_gone_and_back(proxy, make_tracker, tmp_path, fault):
    """With `lose_answers` the server has done what it is asked for again; also the creation of the run."""
    proxy.fault = fault
    tracker = make_tracker(proxy.uri)
    tracker.start(0)
    seconds = train(tracker, range(1, 51))
    time.sleep(0.3)
    proxy.fault = "none"
    seconds += train(tracker, range(51, 101))
    until(lambda: runs_of(proxy.uri, tmp_path.name))
    proxy.fault = fault
    seconds += train(tracker, range(101, 301))
    time.sleep(0.3)
    proxy.fault = "none"
    tracker.close()
    assert_nobody_waited(seconds)
    assert_recorded(proxy.uri, tmp_path.name, range(1, 301))


def test_slow(proxy, make_tracker, tmp_path):
    tracker = make_tracker(proxy.uri)
    tracker.start(0)
    seconds = train(tracker, range(1, 51))
    proxy.delay = 30
    seconds += train(tracker, range(51, 251), pause=0.003)
    proxy.delay = 0
    tracker.close()
    assert_nobody_waited(seconds)
    assert_recorded(proxy.uri, tmp_path.name, range(1, 251))


def test_killed_and_resumed_from_an_earlier_step(server, make_tracker, tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "run"), tmp_path.name, server.uri]
    with open(tmp_path / "steps", "w") as out, subprocess.Popen(command, stdout=out) as process:
        until(lambda: arrived(server.uri, tmp_path.name) > 0.05, seconds=60)
        process.send_signal(signal.SIGKILL)
    reached = int((tmp_path / "steps").read_text().split()[-1])
    resumed = make_tracker(server.uri)
    earlier = reached // 2
    resumed.start(earlier)
    train(resumed, range(earlier + 1, reached + 51), pause=0)
    resumed.close()
    sync(tmp_path / "run", server.uri)  # what the time for closing was too short for
    assert_recorded(server.uri, tmp_path.name, range(1, reached + 51))


@pytest.mark.parametrize(
    ("error", "status"), [(None, "FINISHED"), (ValueError("no"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_how_the_run_ended(server, make_tracker, tmp_path, error, status):
    tracker = BackgroundTracker(make_tracker(server.uri))
    with contextlib.suppress(ValueError, KeyboardInterrupt), contextlib.closing(tracker):
        tracker.start(0)
        tracker.log(1, {"loss": 1.0}, "train")
        if error:
            raise error
    (run,) = runs_of(server.uri, tmp_path.name)
    assert run.info.status == status
    assert run.info.end_time >= run.info.start_time


def test_a_later_attempt_continues_the_run(server, make_tracker, tmp_path):
    first = make_tracker(server.uri, params={"steps": 10, "lr": 0.1}, tags={"attempt": 1})
    first.start(0)
    train(first, range(1, 21))
    first.finish("interrupted")
    first.close()
    second = make_tracker(server.uri, params={"steps": 20, "lr": 0.1}, tags={"attempt": 2})
    second.start(10)
    train(second, range(11, 31))
    until(lambda: runs_of(server.uri, tmp_path.name)[0].info.status == "RUNNING")
    second.close()
    run = assert_recorded(server.uri, tmp_path.name, range(1, 31))
    assert run.data.params == {"steps": "10", "lr": "0.1"}
    assert run.data.tags["everstep.changed.steps"] == "20"
    assert run.data.tags["attempt"] == "2"
    assert run.info.status == "FINISHED"


def test_going_back_within_an_attempt_goes_on_with_the_run(server, make_tracker, tmp_path):
    tracker = make_tracker(server.uri, params={"steps": 30}, tags={"attempt": 1})
    tracker.start(0)
    train(tracker, range(1, 21))
    began = time.monotonic()
    tracker.start(10)
    assert time.monotonic() - began < 0.05
    train(tracker, range(11, 31))
    tracker.close()
    assert assert_recorded(server.uri, tmp_path.name, range(1, 31)).info.status == "FINISHED"
    lines = (tmp_path / "run" / "spool" / "mlflow.jsonl").read_text().splitlines()
    kinds = [record.get("status", record["type"]) for record in map(json.loads, lines)]
    assert [kind for kind in kinds if kind != "metrics"] == ["target", "params", "tags", "running", "finished"]


def test_every_number_arrives(server, make_tracker, tmp_path):
    tracker = make_tracker(server.uri)
    tracker.start(0)
    tracker.log(1, {"nan": math.nan, "inf": math.inf, "minus": -math.inf}, "train")
    tracker.close()
    (run,) = runs_of(server.uri, tmp_path.name)
    assert math.isnan(run.data.metrics["nan"])
    # A database has no infinity: MLflow keeps the largest number.
    assert (run.data.metrics["inf"], run.data.metrics["minus"]) == (sys.float_info.max, -sys.float_info.max)


def test_what_the_server_refuses_for_good_does_not_hold_up_the_rest(server, make_tracker, tmp_path, caplog):
    client = client_of(server.uri)
    experiment = client.create_experiment(tmp_path.name)
    run = client.create_run(experiment, tags={"everstep.run_id": tmp_path.name})
    client.log_param(run.info.run_id, "key7", "somebody else's")
    tracker = make_tracker(
        server.uri, params={f"key{number}": number for number in range(250)}, artifacts=["missing.yaml"]
    )
    tracker.start(0)
    train(tracker, range(1, 21))
    tracker.close()
    run = assert_recorded(server.uri, tmp_path.name, range(1, 21))
    assert run.data.params == {f"key{number}": str(number) for number in range(250)} | {"key7": "somebody else's"}
    lines = (tmp_path / "run" / "spool" / "mlflow.refused.jsonl").read_text().splitlines()
    refused = [json.loads(line)["refused"] for line in lines]
    assert [one.get("key") or one["path"] for one in refused] == ["key7", "missing.yaml"]
    assert len(caplog.records) == 1


def test_what_is_refused_does_not_count_as_sent_and_is_told(proxy, make_tracker, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # nothing hangs here, and the machine may be slow
    proxy.fault = "refuse"
    tracker = make_tracker(proxy.uri)
    tracker.start(0)
    tracker.log(11, {"early": 1.0}, "train")
    train(tracker, range(1, 11))
    tracker.close()
    proxy.fault = "none"
    spool = tmp_path / "run" / "spool" / "mlflow.jsonl"
    spool.write_text(re.sub(r'"time": \d+(.*"early")', r'"time": -5\1', spool.read_text()))  # no time for a server
    storage.write_json(tmp_path / "run" / "run.json", {"id": tmp_path.name})
    assert main(["runs", "sync", str(tmp_path / "run")]) == 0
    sent, refused = capsys.readouterr().out.splitlines()
    assert sent == f"21 points sent to {proxy.uri}, 0 wait"
    assert refused == f"1 entries refused for good: {tmp_path}/run/spool/mlflow.refused.jsonl says why"
    assert_recorded(proxy.uri, tmp_path.name, range(1, 11))


def test_files_are_kept_with_the_run(server, make_tracker, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("trainer: {}\n")
    tracker = make_tracker(server.uri, artifacts=["config.yaml"])
    tracker.start(0)
    tracker.close()
    (run,) = runs_of(server.uri, tmp_path.name)
    (file,) = client_of(server.uri).list_artifacts(run.info.run_id)
    assert (file.path, file.file_size) == ("config.yaml", 12)


def test_a_second_run_left_by_a_request_given_up_is_removed(server, make_tracker, tmp_path):
    client = client_of(server.uri)
    experiment = client.create_experiment(tmp_path.name)
    for time_ in (2, 1):
        client.create_run(experiment, start_time=time_, tags={"everstep.run_id": tmp_path.name})
    tracker = make_tracker(server.uri)
    tracker.start(0)
    train(tracker, range(1, 11))
    tracker.close()
    assert assert_recorded(server.uri, tmp_path.name, range(1, 11)).info.start_time == 1


def test_a_run_that_the_server_does_not_know_gets_everything_again(server, make_tracker, tmp_path):
    first = make_tracker(server.uri, params={"steps": 20})
    first.start(0)
    train(first, range(1, 21))
    first.close()
    (run,) = runs_of(server.uri, tmp_path.name)
    state = tmp_path / "run" / "spool" / "mlflow.sent.json"
    state.write_text(state.read_text().replace(run.info.run_id, "0" * 32))
    second = make_tracker(server.uri)
    second.start(20)
    train(second, range(21, 31))
    second.close()
    assert_recorded(server.uri, tmp_path.name, range(1, 31))


def test_what_is_left_is_told_and_sent_later(proxy, make_tracker, tmp_path, caplog, monkeypatch):
    proxy.fault = "refuse"
    for attempt, steps in ((1, range(1, 61)), (2, range(41, 101))):
        tracker = make_tracker(proxy.uri, tags={"attempt": attempt})
        tracker.start(steps[0])
        train(tracker, steps)
        tracker.close()
    assert "210 points and the end of the run wait for MLflow in" in caplog.text
    assert f"everstep runs sync {tmp_path / 'run'}" in caplog.text
    down = sync(tmp_path / "run")
    assert (down.sent, down.waiting, down.remote_id) == (0, 210, None)
    assert "refused" in down.problem
    proxy.fault = "none"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # what other runs use
    result = sync(tmp_path / "run")
    assert (result.sent, result.waiting, result.problem) == (210, 0, None)
    run = assert_recorded(proxy.uri, tmp_path.name, range(1, 101))
    assert (run.info.run_id, run.info.status) == (result.remote_id, "FINISHED")
    assert run.data.tags["attempt"] == "2"
    assert sync(tmp_path / "run").sent == 0


def test_sync_leaves_a_run_alone_that_is_training(server, make_tracker, tmp_path):
    tracker = make_tracker(server.uri)
    tracker.start(0)
    train(tracker, range(1, 11))
    until(lambda: runs_of(server.uri, tmp_path.name))
    with raises_problem(key="DIR", reason="is in use"):
        sync(tmp_path / "run")


def test_credentials_are_nowhere(proxy, make_tracker, tmp_path, caplog):
    uri = proxy.uri.replace("http://", "http://alice:s3cr3t@")
    proxy.fault = "error"
    tracker = make_tracker(uri)
    tracker.start(0)
    train(tracker, range(1, 11))
    until(lambda: "cannot be reached" in caplog.text)
    proxy.fault = "refuse"
    tracker.close()
    result = sync(tmp_path / "run", uri)
    assert result.waiting == 21
    written = "".join(path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file())
    for text in (caplog.text, written, repr(result)):
        assert "s3cr3t" not in text
        assert "alice" not in text


def test_the_process_ends_while_a_request_hangs(server, tmp_path):
    program = PROGRAM.replace("100_000", "100").replace("name, uri,", "name, uri, close_seconds=0.3,")
    program = program.replace("tracker.start(0)", "tracker.start(0); known = set(sys.modules)")
    program += "\n    tracker.close()\n    print('closed', [m for m in set(sys.modules) - known if 'mlflow' in m])\n"
    server.pause()
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "run"), tmp_path.name, server.uri]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | {"MLFLOW_HTTP_REQUEST_TIMEOUT": "100"}
    )
    assert done.returncode == 0
    assert done.stdout.endswith("closed []\n")  # and no import in the background, which could break one in training
    assert "wait for MLflow" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_without_a_server(starting, make_tracker, tmp_path, monkeypatch):
    """The default: `mlflow.db` beside the run directory; here it is a copy, because creating one takes seconds."""
    starting.copy_database(tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path / "..")
    tracker = make_tracker(None, artifacts=["config.yaml"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("trainer: {}\n")
    tracker.start(0)
    assert_nobody_waited(train(tracker, range(1, 101)))
    tracker.close()
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = assert_recorded(uri, tmp_path.name, range(1, 101))
    assert (tmp_path / "mlartifacts" / run.info.run_id / "artifacts" / "config.yaml").exists()
    assert not Path("mlruns").exists()


@pytest.mark.full
def test_a_database_is_created_where_there_is_none(make_tracker, tmp_path):
    tracker = make_tracker(None)
    tracker.start(0)
    assert_nobody_waited(train(tracker, range(1, 1001), pause=0.003))
    tracker.close()
    assert_recorded(f"sqlite:///{tmp_path}/mlflow.db", tmp_path.name, range(1, 1001))


@pytest.mark.full
def test_stopped_and_started_again(make_tracker, tmp_path):
    with memory_folder() as folder, MlflowServer(folder).running() as server:
        server.wait()
        tracker = make_tracker(server.uri)
        tracker.start(0)
        seconds = train(tracker, range(1, 101))
        until(lambda: runs_of(server.uri, tmp_path.name))
        server.kill()
        seconds += train(tracker, range(101, 501), pause=0.002)
        server.start()
        server.wait()
        seconds += train(tracker, range(501, 601))
        tracker.close()
        assert_nobody_waited(seconds)
        assert_recorded(server.uri, tmp_path.name, range(1, 601))


def test_port_that_nobody_listens_on_costs_nothing(make_tracker):
    tracker = make_tracker(f"http://127.0.0.1:{free_port()}")
    tracker.start(0)
    assert_nobody_waited(train(tracker, range(1, 101), pause=0))
    began = time.monotonic()
    tracker.close()
    assert time.monotonic() - began < 5
