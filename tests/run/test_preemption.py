"""Watchers against servers on this machine that answer as the clouds document."""

import contextlib
import http.server
import itertools
import json
import logging
import queue
import threading
import time

import pytest

from everstep.run.preemption import AwsWatcher, GceWatcher, watcher
from everstep.testing.problems import raises_problem

NOTICE = {"action": "terminate", "time": "2030-09-18T08:22:00Z"}


class Cloud:
    """What the stand-in server answers, and the requests it received."""

    def __init__(self):
        self.preempted = "FALSE"
        self.action = None
        self.tokens = {}
        self.statuses = []
        self.delays = []
        self.requests = []


class Handler(http.server.BaseHTTPRequestHandler):
    cloud: Cloud

    def do_GET(self):
        cloud = self.cloud
        cloud.requests.append(self.path)
        if cloud.delays:
            time.sleep(cloud.delays.pop(0))
        if cloud.statuses:
            self.answer(cloud.statuses.pop(0))
        elif self.path == "/computeMetadata/v1/instance/preempted":
            good = self.headers["Metadata-Flavor"] == "Google"
            self.answer(200 if good else 403, cloud.preempted)
        elif self.path == "/latest/meta-data/spot/instance-action":
            good = time.monotonic() < cloud.tokens.get(self.headers["X-aws-ec2-metadata-token"], 0)
            self.answer(401 if not good else 404 if cloud.action is None else 200, cloud.action or "")
        else:
            self.answer(404)

    def do_PUT(self):
        self.cloud.requests.append(f"PUT {self.path}")
        seconds = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        if self.path != "/latest/api/token" or not seconds or not 1 <= int(seconds) <= 21600:
            return self.answer(400)
        token = f"token-{len(self.cloud.tokens)}"
        self.cloud.tokens[token] = time.monotonic() + int(seconds)
        return self.answer(200, token)

    def answer(self, status, text=""):
        body = text if isinstance(text, bytes) else text.encode()
        with contextlib.suppress(OSError):  # it has given up waiting
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def cloud(monkeypatch):
    cloud = Cloud()
    handler = type("Here", (Handler,), {"cloud": cloud})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # no server there
    yield cloud
    server.shutdown()
    server.server_close()
    thread.join()


@contextlib.contextmanager
def watching(notices_of, timeout=300.0):
    """Starts a watcher that polls often; yields the queue its notices go to."""
    notices_of.interval, notices_of.timeout = 0.02, timeout
    notices = queue.Queue()
    notices_of.start(notices.put)
    try:
        yield notices
    finally:
        notices_of.stop()


def wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_gce(cloud, caplog):
    with watching(watcher("gce")) as notices:
        wait_until(lambda: len(cloud.requests) > 2)
        assert notices.empty()
        cloud.preempted = "TRUE"
        assert "GCE takes this machine back" in notices.get(timeout=300)
    assert not caplog.records
    polled = len(cloud.requests)
    time.sleep(0.1)
    assert len(cloud.requests) == polled, "it keeps polling"
    assert notices.empty()


def test_aws(cloud, caplog):
    with watching(watcher("aws")) as notices:
        wait_until(lambda: len(cloud.requests) > 3)
        assert notices.empty()
        cloud.action = json.dumps(NOTICE)
        assert notices.get(timeout=300).endswith("EC2 will terminate this machine at 2030-09-18T08:22:00Z")
    assert cloud.requests.count("PUT /latest/api/token") == 1
    assert not caplog.records


def test_aws_tokens_are_renewed_before_they_expire(cloud, caplog):
    with watching(AwsWatcher(token_seconds=1)) as notices:
        wait_until(lambda: len(cloud.tokens) >= 2)
    assert notices.empty()
    assert not caplog.records


def test_aws_tokens_that_stop_working_are_replaced_at_once(cloud, caplog):
    aws = AwsWatcher()
    assert aws.poll() is None
    cloud.tokens.clear()
    assert aws.poll() is None
    assert cloud.requests.count("PUT /latest/api/token") == 2
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "trouble"),
    [*itertools.product(["gce", "aws"], ["status", "garbage", "bytes"]), ("gce", "slow")],
)
def test_trouble_is_one_warning_and_the_notice_still_comes(cloud, caplog, name, trouble):
    if trouble == "status":
        cloud.statuses = [503, 500, 302, 403]
    elif trouble == "slow":
        cloud.delays = [1.0]
    else:
        cloud.preempted = cloud.action = b"\xff\xfe" if trouble == "bytes" else "[<html>]"
    timeout = 0.2 if trouble == "slow" else 300.0
    with caplog.at_level(logging.WARNING), watching(watcher(name), timeout) as notices:
        wait_until(lambda: caplog.records)
        wait_until(lambda: not cloud.statuses and len(cloud.requests) > 6 or trouble == "slow")
        assert notices.empty()
        cloud.preempted, cloud.action = "TRUE", json.dumps(NOTICE)
        assert notices.get(timeout=300)
    [record] = caplog.records
    assert "preemption notices are not available (still trying)" in record.getMessage()


@pytest.mark.parametrize("text", ["[]", "{}", '"terminate"'])
def test_aws_json_without_an_action_is_no_notice(cloud, text):
    cloud.action = text
    with pytest.raises(ValueError, match="expected JSON with an action"):
        AwsWatcher().poll()


@pytest.mark.parametrize("make", [GceWatcher, AwsWatcher])
def test_no_server_at_all_is_one_warning(monkeypatch, caplog, make):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    with watching(make()) as notices:
        wait_until(lambda: caplog.records)
        time.sleep(0.2)
    assert notices.empty()
    assert len(caplog.records) == 1


def test_a_stopped_watcher_is_silent_and_stops_at_once(cloud):
    gce = watcher("gce")
    gce.stop()
    gce = watcher("gce")
    gce.interval, gce.timeout = 3600.0, 300.0
    notices = queue.Queue()
    gce.start(notices.put)
    gce.stop()
    assert not gce._thread.is_alive(), "it sleeps until its next poll"
    cloud.preempted = "TRUE"
    time.sleep(0.05)
    assert notices.empty()


@pytest.mark.parametrize("name", ["gcp", "", "azure"])
def test_unknown_clouds(name):
    with raises_problem(key="runtime.preemption_notice", remedy="'gce'") as error:
        watcher(name)
    assert repr(name) in str(error.value)


def test_documented_addresses(monkeypatch):
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    assert GceWatcher()._url == "http://metadata.google.internal/computeMetadata/v1/instance/preempted"
    assert AwsWatcher()._base == "http://169.254.169.254/latest"
    assert (GceWatcher.interval, AwsWatcher.interval) == (1.0, 5.0)
