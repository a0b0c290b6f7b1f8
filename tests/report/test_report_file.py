"""The report's file: its path, that it is complete, and the errors when there is nothing to show."""

import re
import time
import webbrowser
from pathlib import Path

import numpy as np
import pytest

from everstep import storage
from everstep.cli.commands import load
from everstep.errors import UsageError
from everstep.evaluation import Evaluator, SampleBatch
from everstep.report import html_page, server, write
from everstep.run.record import Run
from everstep.testing.problems import raises_problem

from .report_runs import classification_run, resumed_run

PAGE = Path(html_page.__file__).parent / "page"


def test_the_path_of_the_file(tmp_path):
    first, second = resumed_run(tmp_path / "first"), resumed_run(tmp_path / "second")
    assert write(first) == first / "reports" / "report.html"
    assert write([first, second]) == first / "reports" / "comparison.html"
    assert write([first], tmp_path / "new" / "page.html").is_file()
    assert sorted(path.name for path in (first / "reports").iterdir()) == ["comparison.html", "report.html"]


def test_the_same_run_gives_the_same_bytes(tmp_path):
    classification_run(resumed_run(tmp_path))
    assert write([tmp_path]).read_bytes() == write([tmp_path]).read_bytes()


def test_a_failure_keeps_the_old_file(tmp_path, monkeypatch):
    path = write([resumed_run(tmp_path)])
    before = path.read_bytes()
    monkeypatch.setattr(storage.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        write([tmp_path])
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_directories_that_are_not_runs_are_refused(tmp_path):
    with raises_problem(key="RUN", reason="contains neither run.json nor an evaluation"):
        write([tmp_path / "nowhere"])
    Run.open(tmp_path / "new", "mnist/mlp", "jax").begin(0, "", code={})
    with raises_problem(key="RUN", reason="has no logged step and no evaluation yet"):
        write([tmp_path / "new"])
    with raises_problem(key="run_dirs", reason="at least one run"):
        write([])
    with raises_problem(key="output", reason="is a directory", remedy="name a file"):
        write([resumed_run(tmp_path / "run")], tmp_path)


def test_runs_with_the_same_name_are_shown_with_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = write([resumed_run(Path("a/run")), resumed_run(Path("b/run"))]).read_text("utf-8")
    assert "<title>a/run · b/run</title>" in text


def test_every_script_is_inlined_and_safe():
    assert {path.name for path in PAGE.glob("*.js")} == {*html_page.SCRIPTS, *server.SCRIPTS}
    for path in PAGE.iterdir():
        text = path.read_text("utf-8")
        assert len(text.splitlines()) < 250
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://(?!www\.w3\.org/2000/svg)", text
        )
        assert path.suffix == ".html" or "</" not in text


def test_the_page_needs_no_network(tmp_path):
    text = write([resumed_run(tmp_path)]).read_text("utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"<(link|iframe|object|base)\b|\ssrc=", text.partition('id="data"')[0])


def test_the_command(tmp_path, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    first, second = resumed_run(tmp_path / "first"), resumed_run(tmp_path / "second")
    command = load("report")
    command.main([str(first), str(second), "--output", str(tmp_path / "both.html"), "--open"], standalone_mode=False)
    assert capsys.readouterr().out == f"{tmp_path / 'both.html'}\n"
    assert shown == [(tmp_path / "both.html").as_uri()]
    command.main([str(first)], standalone_mode=False)
    assert capsys.readouterr().out == f"{first / 'reports' / 'report.html'}\n"
    with pytest.raises(UsageError) as error:
        command.main([str(tmp_path / "none")], standalone_mode=False)
    assert "\n" not in str(error.value)
    assert len(shown) == 1


@pytest.mark.full
def test_a_million_rows(tmp_path):
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 1_000_000)
    shares = random.dirichlet(np.ones(10), 1_000_000)
    batches = (SampleBatch(None, labels[i : i + 8192], shares[i : i + 8192]) for i in range(0, 1_000_000, 8192))
    Evaluator({"right": lambda y, p: float(p.argmax() == y)}).run(batches, tmp_path / "reports", "test")
    start = time.process_time()  # not wall time, so that the load of the machine does not matter
    path = write([tmp_path])
    seconds, size = time.process_time() - start, path.stat().st_size / 1e6
    print(f"a report of 1,000,000 rows: {seconds:.1f} CPU s, {size:.1f} MB")
    assert size < 5
    assert seconds < 60
