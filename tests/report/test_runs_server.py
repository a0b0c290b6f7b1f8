"""The server of the live page: what it answers, to whom, and that it only reads."""

import http.client
import json
import time
from urllib.parse import quote

import pytest

from everstep.report import RunsFolder, RunsServer
from everstep.run.record import Run

from .report_runs import HOSTILE, classification_run, resumed_run

SECRET = "not below the folder"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    resumed_run(root / "runs" / "first")
    resumed_run(root / "runs" / "deep" / "second", lag=0.2, config="trainer:\n  seed: 2\n")
    classification_run(root / "runs" / "first", rows=20)
    Run.open(root / "runs" / "empty", "mnist/mlp", "jax").begin(0, "a: 1\n")
    (root / "outside").mkdir()
    resumed_run(root / "outside" / "other")
    (root / "outside" / "other" / "config.yaml").write_text(f"text: {SECRET}\n")
    (root / "runs" / "linked").symlink_to(root / "outside" / "other")
    (root / "runs" / "damaged").mkdir()
    (root / "runs" / "damaged" / "run.json").write_text("{")
    return root


@pytest.fixture(scope="module")
def server(root):
    with RunsServer(RunsFolder(root / "runs"), "127.0.0.1", 0) as server:
        yield server


def ask(server, path, host=None, method="GET", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        sent = {"Host": host or f"127.0.0.1:{server.port}", **(headers or {})}
        connection.request(method, path, headers=sent)
        answer = connection.getresponse()
        return answer, answer.read().decode("utf-8")
    finally:
        connection.close()


def test_the_table_has_every_run_with_its_state(server):
    answer, text = ask(server, "/runs.json")
    rows = {row["name"]: row for row in json.loads(text)["runs"]}
    assert answer.status == 200
    assert set(rows) >= {"first", "deep/second", "empty", "damaged"}
    assert rows["first"]["state"] == "finished"
    assert rows["empty"]["state"] == "killed"
    assert rows["damaged"]["state"] == "unreadable"
    assert rows["first"]["metrics"]["validation loss"] == {"value": 0.3, "better": "lower", "of": ""}
    assert (rows["first"]["step"], rows["first"]["attempts"]) == (40, 2)


def test_the_table_has_the_numbers_of_the_exported_weights(tmp_path):
    path = resumed_run(tmp_path / "stopped") / "run.json"
    final = {"step": 20, "epoch": 2, "exported": True, "metrics": {"validation": {"validation_loss": 0.1}}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "final_weights": final}))
    (row,) = RunsFolder(tmp_path).rows()
    assert row["metrics"]["validation loss"] == {"value": 0.1, "better": "lower", "of": "epoch 2, exported"}
    assert row["metrics"]["train loss"]["of"] == ""


def test_an_answer_that_is_as_before_comes_without_its_content(server):
    tag = ask(server, "/runs.json")[0].headers["ETag"]
    answer, text = ask(server, "/runs.json", headers={"If-None-Match": tag})
    assert (answer.status, text) == (304, "")


def test_curves_comparison_and_report(server):
    curves = json.loads(ask(server, "/curves.json?run=first&run=deep%2Fsecond&run=damaged")[1])["runs"]
    assert [run["name"] for run in curves] == ["first", "deep/second"]
    assert {curve["name"] for curve in curves[0]["curves"]} >= {"loss", "accuracy"}
    comparison = json.loads(ask(server, "/comparison.json?run=first&run=deep%2Fsecond")[1])
    assert comparison["sections"]["configuration"] == [{"key": "trainer.seed", "values": ["1", "2"]}]
    answer, page = ask(server, "/report?run=first&run=deep%2Fsecond")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "<title>first · second</title>" in page


def test_only_runs_of_the_folder_are_read(server):
    """By no spelling of a path, and not through a link that leads out of it."""
    for name in (
        "../outside/other",
        "/etc",
        ".",
        "first/..",
        "linked",
        "deep",
        "first/../../outside/other",
        "x\0y",
    ):
        for path in ("curves.json", "comparison.json", "report"):
            answer, text = ask(server, f"/{path}?run={quote(name, safe='')}")
            assert answer.status == 404, (path, name)
            assert SECRET not in text
    for path in (
        "/../outside/other/config.yaml",
        "/%2e%2e/outside",
        "/runs/first/run.json",
        "/etc/passwd",
        "//etc/passwd",
    ):
        assert ask(server, path)[0].status == 404


def test_a_request_has_to_name_this_machine(server):
    """Else any page could read along, under a name of its own that it lets point to 127.0.0.1."""
    for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "192.0.2.7", "", "[", "a b"):
        answer, text = ask(server, "/runs.json", host=host or " ")
        assert answer.status == 403, host
        assert "first" not in text
    for host in ("localhost", f"localhost:{server.port}", "127.0.0.1", "[::1]:80"):
        assert ask(server, "/runs.json", host=host)[0].status == 200, host


def test_only_get_is_answered(server, root):
    before = sorted((path, path.stat().st_mtime_ns) for path in (root / "runs").rglob("*"))
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(server, "/runs.json", method=method)[0].status == 501
    for path in ("/", "/runs.json", "/curves.json?run=first", "/report?run=first"):
        answer, _ = ask(server, path)
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
    after = sorted((path, path.stat().st_mtime_ns) for path in (root / "runs").rglob("*"))
    assert before == after, "looking changes nothing"


def test_a_run_without_anything_to_show_says_so(server):
    answer, text = ask(server, "/report?run=empty")
    assert answer.status == 404
    assert "has no logged step and no evaluation yet" in text
    assert "expected at most 50 runs" in ask(server, f"/curves.json?{'&'.join(f'run={n}' for n in range(51))}")[1]


def test_what_runs_hold_cannot_end_the_page(server, tmp_path):
    resumed_run(tmp_path / HOSTILE.replace("/", "_"))
    with RunsServer(RunsFolder(tmp_path), "127.0.0.1", 0) as server:
        answer, text = ask(server, "/runs.json")
        assert answer.headers["Content-Type"] == "application/json"
        assert json.loads(text)["runs"][0]["name"] == HOSTILE.replace("/", "_")
        assert ask(server, f"/report?run={quote(HOSTILE, safe='')}")[0].headers["Content-Type"].startswith("text/plain")


def test_the_folder_may_come_later(tmp_path):
    folder = RunsFolder(tmp_path / "runs")
    assert folder.rows() == []
    resumed_run(tmp_path / "runs" / "first")
    folder._until = 0.0
    assert [row["name"] for row in folder.rows()] == ["first"]
    assert RunsFolder(tmp_path / "runs" / "first").rows()[0]["name"] == "."


def test_a_thousand_runs_are_read_once_for_all_who_ask(tmp_path):
    """What takes long is not repeated at every request: a table is good for a multiple of the time that it took."""
    path = resumed_run(tmp_path / "run-0")
    text = (path / "run.json").read_text()
    for number in range(1, 300):
        (tmp_path / f"run-{number}").mkdir()
        (tmp_path / f"run-{number}" / "run.json").write_text(text)
    folder, begin = RunsFolder(tmp_path), time.process_time()
    assert len(folder.rows()) == 300
    first, begin = time.process_time() - begin, time.process_time()
    assert len(folder.rows()) == 300
    assert time.process_time() - begin < first / 2


def test_the_page_is_complete_without_a_network(server):
    _, page = ask(server, "/")
    assert "connect-src 'self'" in page
    assert "default-src 'none'" in page
    assert "<link" not in page
    assert " src=" not in page
