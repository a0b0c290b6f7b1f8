"""Names of runs, without the prefix `runs/`."""

from pathlib import Path

import pytest

from everstep.run import named_run, naming, run_names, runs_like


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("first", "sweep-a/trials/0", "both"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "run.json").write_text("{}")
    for name in ("runs/empty", "both", "mine", "data"):
        Path(name).mkdir()
    Path("mine/run.json").write_text("{}")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("first", "runs/first"),
        ("runs/first", "runs/first"),
        ("sweep-a/trials/0", "runs/sweep-a/trials/0"),
        ("sweep-a", "runs/sweep-a"),  # holds runs
        ("both", "runs/both"),  # the one here is no run
        ("mine", "mine"),
        ("data", "data"),
        ("nothing", "nothing"),
        (".", "."),
        ("", ""),
        ("./both", "./both"),
        ("../runs/first", "../runs/first"),
        ("/tmp", "/tmp"),
        ("gs://bucket/first", "gs://bucket/first"),
    ],
)
def test_a_name_stands_for_a_run(name: str, path: str) -> None:
    assert named_run(name) == path
    assert named_run(Path(name)) == path or name in ("", "gs://bucket/first", "./both")


def test_what_is_taken_of_two(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A folder of data, say, is called like the run that was trained on it."""
    monkeypatch.setattr(naming, "_told", set())
    for name in ("both", "both", "first", "mine", "./both"):
        named_run(name)
    assert caplog.messages == ["'both' here is no run: the run 'runs/both' is taken (./both is the other)"]


def test_similar_runs() -> None:
    assert run_names() == ["both", "first", "sweep-a/trials/0"]
    assert runs_like("frist") == "did you mean 'runs/first'?"
    assert runs_like("fir") == "did you mean 'runs/first'?"
    assert runs_like("xyzzy") == "`everstep runs` lists the runs below 'runs'"


def test_where_there_are_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "data")
    assert runs_like("first") == ""
