"""`everstep runs rm`: what goes, what is refused, and what a kill leaves."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.run import removal
from everstep.run.lock import RunLock
from everstep.run.record import Run
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


def finished_run(directory: str, **record: Any) -> Path:
    run = Run.open(directory, "mnist/mlp", "jax")
    run.begin(0, "{}", code={})
    run.record |= record
    run.update(8, 1, {"validation": {"accuracy": 0.5}})
    run.finish("finished", "done")
    (run.directory / "checkpoints" / "8").mkdir(parents=True)
    (run.directory / "checkpoints" / "8" / "data").write_bytes(b"x" * 3000)
    return run.directory


def test_it_shows_what_goes_and_removes_it(everstep: Any) -> None:
    finished_run("runs/a"), finished_run("runs/b"), finished_run("runs/c")
    looked = everstep("runs", "rm", "runs/a", "runs/b", "--dry-run")
    assert looked.out.splitlines()[0].split() == ["DIRECTORY", "STATUS", "PROGRESS", "FILES", "SIZE", "METRICS"]
    assert looked.out.splitlines()[1].split()[:4] == ["runs/a", "finished", "8", "4"]
    assert "KiB  accuracy=0.5" in looked.out
    assert looked.out.endswith("\nnothing is removed\n")
    assert Path("runs/a/run.json").exists()
    done = everstep("runs", "rm", "runs/a", "runs/b", "runs/a/", "--yes")
    assert done.out.splitlines()[-2:] == ["removed runs/a", "removed runs/b"]
    assert os.listdir("runs") == ["c"]
    assert (looked.code, done.code) == (0, 0)


def test_links_are_removed_and_not_followed(everstep: Any, tmp_path: Path) -> None:
    run, outside = finished_run("runs/a"), tmp_path / "precious"
    outside.mkdir()
    (outside / "data.bin").write_bytes(b"precious")
    (run / "samples").symlink_to(outside)
    (run / "metrics.jsonl").symlink_to(outside / "data.bin")
    assert everstep("runs", "rm", "runs/a", "--yes").code == 0
    assert not run.exists()
    assert (outside / "data.bin").read_bytes() == b"precious"


def test_trackers_keep_what_they_have(everstep: Any) -> None:
    finished_run("runs/a"), (finished_run("runs/b") / "spool").mkdir()
    assert "trackers" not in everstep("runs", "rm", "runs/a", "--yes").out
    assert everstep("runs", "rm", "runs/b", "--yes").out.endswith("such as MLflow have of it stays there\n")


REFUSED = {
    "nowhere": "nowhere: there is no such directory",
    ".": ".: is or contains the working directory",
    "/": "/: is or contains the working directory",
    "..": "..: is or contains the working directory",
    "runs/a/../../.": "is or contains the working directory",
    str(Path.home()): "is or contains your home directory",
    "runs": "runs: is not a run, but contains some, such as 'runs/a': specify the runs to remove",
    "empty": "empty: is not a run directory: it has no run.json",
    "runs/a/checkpoints": "runs/a/checkpoints: is not a run directory",
    "runs/a/run.json": "runs/a/run.json: there is no such directory",
    "link": "link: is a link to ",
    "damaged": "is not valid JSON",
    "project": "project: is a project: it contains pyproject.toml",
    "outer": "outer: contains other runs, such as 'outer/inner/deep'",
    "s3://bucket/run": "is at a URL: remove it with the store's own tools",
}


@pytest.mark.parametrize(("name", "message"), REFUSED.items())
def test_refused_directories(everstep: Any, name: str, message: str) -> None:
    (
        finished_run("runs/a"),
        finished_run("project"),
        finished_run("outer"),
        finished_run("outer/inner/deep"),
        finished_run("damaged"),
    )
    Path("empty").mkdir()
    Path("link").symlink_to("runs/a")
    Path("project/pyproject.toml").touch()
    Path("damaged/run.json").write_text("{")
    outcome = everstep("runs", "rm", "runs/a", name, "--yes", "--force")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err
    assert Path("runs/a/run.json").exists(), "what is fine goes only with the rest"


def test_a_run_that_is_trained_is_left_alone(everstep: Any) -> None:
    run = finished_run("runs/a")
    with RunLock(run):
        outcome = everstep("runs", "rm", "runs/a", "--yes")
        assert outcome.code == 2
        assert "runs/a: is being trained" in outcome.err
    (run / ".lock.json").write_text(json.dumps({"host": "another", "pid": 1}))
    assert "runs/a/.lock.json" in everstep("runs", "rm", "runs/a", "--yes").err
    (run / ".lock.json").unlink()
    with RunLock(run), raises_problem(reason="is being trained by process"):
        removal.remove(run)  # another process has begun since it was checked
    assert (run / "run.json").exists()
    assert everstep("runs", "rm", "runs/a", "--yes").code == 0


def test_a_run_that_waits_in_a_queue(everstep: Any) -> None:
    snapshot = finished_run("runs/a") / "submissions" / "20300101-000000-abcd"
    snapshot.mkdir(parents=True)
    (snapshot / "submission.json").write_text(
        json.dumps({"id": "x", "executor": "ray", "job": "7", "submitted": "2126-01-01T00:00:00+00:00"})
    )
    outcome = everstep("runs", "rm", "runs/a", "--yes")
    assert outcome.code == 2
    assert "is queued (ray 7): end it first: ray job stop 7" in outcome.err


def test_a_run_that_another_began_with(everstep: Any) -> None:
    finished_run("runs/first")
    finished_run("runs/second", initial_weights=[{"path": "runs/first/checkpoints/8", "kind": "x", "matched": []}])
    outcome = everstep("runs", "rm", "runs/first", "--yes")
    assert outcome.code == 2
    assert "received 'runs/first', 'runs/second' began with its weights" in outcome.err
    assert everstep("runs", "rm", "runs/first", "runs/second", "--yes", "--dry-run").code == 0
    assert everstep("runs", "rm", "runs/first", "--yes", "--force").code == 0
    assert os.listdir("runs") == ["second"]


def test_of_a_projects_run_the_users_files_stay(everstep: Any) -> None:
    folder = finished_run("runs/base/training").parent
    for name in ("config.yaml", "notes.md", "eval_report.csv"):
        (folder / name).write_text(name)
    for name in ("run.json", "checkpoints"):
        (folder / name).symlink_to(f"training/{name}")
    (folder / "exported").mkdir()
    assert (
        "is a part of the run 'runs/base': specify the whole run"
        in everstep("runs", "rm", "runs/base/training", "--yes").err
    )
    assert everstep("runs", "rm", "runs/base", "--yes").out.splitlines()[-1] == (
        "removed runs/base (your own files in it stay: config.yaml, notes.md)"
    )
    assert sorted(os.listdir(folder)) == ["config.yaml", "notes.md"]
    assert "no runs" in everstep("runs").out


def test_only_what_the_run_has_written_goes(everstep: Any) -> None:
    """Also of a directory that held files before, some of which are called like the files of a run."""
    mine = ["notes.md", "cats/1.png", "train/dog/2.png", "reports/mine.txt", "checkpoints/old.h5"]
    for name in mine:
        path = Path("data", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    run = finished_run("data")
    (run / "train" / "events.out.tfevents.1").touch()
    (run / "export").mkdir()
    (run / "export" / "model.keras").touch()
    (run / "later.txt").write_text("later.txt")
    listed = everstep("runs", "rm", "data", "--dry-run").out.splitlines()[1]
    assert listed.split()[3:4] == ["6"], "the files of the run"
    done = everstep("runs", "rm", "data", "--yes")
    assert done.out.splitlines()[-1] == (
        "removed data (your own files in it stay: cats, checkpoints, later.txt, notes.md, reports, and 1 more)"
    )
    left = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    assert left == sorted([*mine, "later.txt"])
    assert all((run / name).read_text() == name for name in left)


def test_the_directory_of_a_flow_goes_with_what_its_code_has_written(everstep: Any) -> None:
    run = finished_run("runs/flow")
    for name in ("flow.yaml", "predictions.csv"):
        (run / name).touch()
    assert everstep("runs", "rm", "runs/flow", "--yes").code == 0
    assert not run.exists()


KILLED = """
import os, signal, shutil
from pathlib import Path
from everstep.run import removal
shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
removal.remove(Path("runs/a"))
"""


def test_a_kill_in_the_middle_leaves_no_half_run(everstep: Any) -> None:
    finished_run("runs/a"), finished_run("runs/b")
    assert subprocess.run([sys.executable, "-c", KILLED]).returncode == -signal.SIGKILL
    assert not Path("runs/a").exists()
    assert [path.name.startswith(".everstep-removed-") for path in Path("runs").iterdir()].count(True) == 1
    assert "runs/a" not in everstep("runs").out
    assert everstep("runs", "rm", "runs/b", "--yes").code == 0
    assert os.listdir("runs") == []


def test_nobody_to_ask(everstep: Any, monkeypatch: Any) -> None:
    finished_run("runs/a")
    with open(os.devnull, encoding="utf-8") as empty:
        monkeypatch.setattr(sys, "stdin", empty)
        outcome = everstep("runs", "rm", "runs/a")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "--yes" in outcome.err
    assert Path("runs/a").exists()


@pytest.mark.parametrize(("answer", "removed"), [(b"y\n", True), (b"\n", False), (b"\x04", False)])
def test_the_prompt(tmp_path: Path, answer: bytes, removed: bool) -> None:
    """On a real terminal; only a yes removes."""
    run = finished_run(str(tmp_path / "runs" / "a"))
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "everstep", "runs", "rm", "runs/a"],
        cwd=tmp_path,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        os.write(master, answer)
        out, err = process.communicate(timeout=300)
    os.close(master), os.close(terminal)
    assert b"Remove this run for good? [y/N]" in err
    assert process.returncode == 0
    assert (b"removed runs/a" in out, b"nothing is removed" in out, run.exists()) == (removed, not removed, not removed)
