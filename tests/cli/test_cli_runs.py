"""`everstep runs`."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest

from everstep.run.lock import RunLock
from everstep.run.record import Run


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run that was killed once."""
    run = Run.open(tmp_path / "runs" / "a", "mnist/mlp", "jax")
    run.begin(0, "", code={"commit": "abc"})
    run.begin(4, "", code={"commit": "abc"})
    logs = {"validation_loss": 0.25, "accuracy": 0.5, "eval_seconds": 3.0}
    run.update(8, 1, {"train": {"training_loss": float("nan")}, "validation": logs})
    run.finish("finished", "done", "d1", "d2")
    return run.directory


HEADER = ["DIRECTORY", "EXPERIMENT", "BACKEND", "STATUS", "PROGRESS", "LEFT", "ATTEMPTS", "SEEN", "METRICS"]


def cells(line: str) -> list[str]:
    """The cells of a row: between them are two blanks or more."""
    return re.split(r"\s{2,}", line)


def test_a_table_of_runs(everstep: Any, finished: Path) -> None:
    Run.open("other/b", "mnist/cnn", "jax").begin(0, "", code={})
    for words in ([], ["runs"], ["list", "runs"]):
        header, row = everstep("runs", *words).out.splitlines()
        assert header.split() == HEADER
        *known, seen, metrics = cells(row)
        assert known == ["runs/a", "mnist/mlp", "jax", "finished", "8", "-", "2"]
        assert re.fullmatch(r"\d+ s", seen)
        assert metrics == "validation_loss=0.25 accuracy=0.5"
        assert header.index("METRICS") == row.index("validation_loss")
    assert everstep("runs", ".").out.splitlines()[1].split()[:3] == ["other/b", "mnist/cnn", "jax"]
    assert json.loads(everstep("runs", "runs", "--json").out)[0]["directory"] == "runs/a"


def begun(directory: str, steps: int, train_steps: int | None) -> Run:
    """A run in the middle of its work; who does it is another question."""
    run = Run.open(directory, "mnist/mlp", "jax")
    run.record["train_steps"] = train_steps
    run.begin(0, "", code={})
    run.mark_first_step()
    run.update(steps, 0)
    return run


def test_running_is_who_holds_the_lock(everstep: Any) -> None:
    run = begun("runs/a", 1200, 4000)
    assert cells(everstep("runs").out.splitlines()[1])[3:6] == ["killed", "1200/4000 30 %", "-"]
    with RunLock(run.directory) as lock:
        attempt = run.record["attempts"][-1]
        earlier = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1000)
        attempt |= {"started": earlier.isoformat(), "first_step": earlier.isoformat()}
        run.update(1200, 0)
        lock.beat(2000)  # beyond what is recorded
        state, progress, left = cells(everstep("runs").out.splitlines()[1])[3:6]
        assert (state, progress) == ("running", "2000/4000 50 %")
        assert left in ("16 min", "17 min"), "half of it took 1000 seconds"
        shown = everstep("runs", "show", "runs/a").out
        assert re.search(r"^status +running$", shown, re.MULTILINE)
        assert re.search(r"^progress +2000/4000 50 %$", shown, re.MULTILINE)
    run.finish("finished", "done")
    assert cells(everstep("runs").out.splitlines()[1])[3] == "finished"


def test_a_projects_run_is_one_run(everstep: Any) -> None:
    """The loop trains in `training`, and the folder above has links into it, sooner or later."""
    folder = Path("runs/baseline")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    run = begun("runs/baseline/training", 3, 10)
    with RunLock(folder), RunLock(folder / "training"):
        for _ in range(2):
            (row,) = everstep("runs").out.splitlines()[1:]
            assert cells(row)[0:5] == ["runs/baseline", "mnist/mlp", "jax", "running", "3/10 30 %"]
            if not (folder / "run.json").exists():
                (folder / "run.json").symlink_to("training/run.json")
    run.finish("finished", "done")
    with RunLock(folder):
        assert "exporting" in everstep("runs").out
        (folder / "exported").mkdir()
        (folder / "exported" / "export.json").write_text("{}")
        assert "evaluating" in everstep("runs").out
    assert "trained" in everstep("runs").out  # and not evaluated
    (folder / "reports").mkdir()
    (folder / "reports" / "metrics.json").write_text("{}")
    assert "finished" in everstep("runs").out


@pytest.mark.parametrize(
    ("executor", "notes", "state"),
    [
        ("ray", {}, "queued (ray 7)"),
        ("background", {}, "killed"),
        ("background", {"started.json": {}}, "killed"),
        ("background", {"started.json": {}, "ended.json": {"code": 2}}, "failed (exit 2, background 7)"),
        ("ray", {"started.json": {}, "ended.json": {"code": 0}}, "finished"),
    ],
)
def test_a_submitted_run_that_has_not_begun(everstep: Any, executor: str, notes: Any, state: str) -> None:
    snapshot = Path("runs/a/submissions/20300101-000000-abcd")
    snapshot.mkdir(parents=True)
    record = {"id": "x", "executor": executor, "job": "7", "submitted": "2026-01-01T00:00:00+00:00"}
    for name, values in {"submission.json": record, **notes}.items():
        (snapshot / name).write_text(json.dumps(values))
    (row,) = everstep("runs").out.splitlines()[1:]
    assert cells(row)[:7] == ["runs/a", "-", "-", state, "-", "-", "0"]
    assert cells(row)[7].endswith(" d")
    (one,) = json.loads(everstep("runs", "--json").out)
    assert (one["state"], one["submission"]["job"]) == (state, "7")


def test_a_job_recorded_before_executors_were_called_so(everstep: Any) -> None:
    snapshot = Path("runs/a/submissions/20300101-000000-abcd")
    snapshot.mkdir(parents=True)
    record = {"id": "x", "engine": "ray", "job": "7", "submitted": "2026-01-01T00:00:00+00:00"}
    (snapshot / "submission.json").write_text(json.dumps(record))
    (one,) = json.loads(everstep("runs", "--json").out)
    assert (one["state"], one["submission"]["executor"]) == ("queued (ray 7)", "ray")


def submitted(folder: str, time: str, **ended: Any) -> Path:
    """A job of a queue that this machine does not have."""
    snapshot = Path(folder, "submissions", "20300101-000000-abcd")
    snapshot.mkdir(parents=True)
    (snapshot / "submission.json").write_text(json.dumps({"id": "x", "executor": "ray", "job": "7", "submitted": time}))
    if ended:
        (snapshot / "started.json").write_text("{}")
        (snapshot / "ended.json").write_text(json.dumps(ended))
    return snapshot


def test_a_run_that_waits_is_shown(everstep: Any) -> None:
    snapshot = submitted("runs/a", "2026-01-01T00:00:00+00:00")
    shown = everstep("runs", "show", "runs/a")
    assert [cells(line) for line in shown.out.splitlines()] == [
        ["status", "queued (ray 7)"],
        ["submitted", f"ray 7, {snapshot}"],
    ]
    assert everstep("runs", "show", "runs/a", "--json").err.startswith("everstep: error: 'runs/a' is not a run")


def test_a_job_that_failed_before_its_first_step_of_a_run_that_was_done(everstep: Any, finished: Path) -> None:
    submitted("runs/a", "2126-01-01T00:00:00+00:00", code=2)
    assert "failed (exit 2, ray 7)" in everstep("runs").out
    submitted("runs/b", "2026-01-01T00:00:00+00:00", code=2)
    begun("runs/b", 3, 10).finish("interrupted", "asked")
    assert cells(everstep("runs").out.splitlines()[2])[3] == "interrupted", "its job came that far"


@pytest.mark.parametrize(
    "values",
    [
        {"attempts": [{"started": "?"}]},
        {"attempts": {}},
        {"step": None},
        {"metrics": {"validation": [1]}},
        {"id": 5},
        "not a record",
    ],
)
def test_one_damaged_record_costs_no_other_run(everstep: Any, finished: Path, values: Any) -> None:
    damaged = begun("runs/b", 3, 10).directory / "run.json"
    text = json.dumps(json.loads(damaged.read_text()) | values) if isinstance(values, dict) else values
    damaged.write_text(text)
    first, second = everstep("runs").out.splitlines()[1:]
    assert (cells(first)[3], cells(second)[3]) == ("finished", "unreadable")
    assert [one["state"] for one in json.loads(everstep("runs", "--json").out)] == ["finished", "unreadable"]
    for words in (("runs", "show", "runs/b"), ("report", "runs/b")):
        outcome = everstep(*words)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
        assert "runs/b/run.json" in outcome.err


def test_times_that_cannot_be_read(everstep: Any, finished: Path) -> None:
    record = json.loads((finished / "run.json").read_text())
    for attempt in record["attempts"]:
        attempt |= {"started": "2026-13-01", "ended": "soon", "first_step": 5}
    (finished / "run.json").write_text(json.dumps(record))
    submitted("runs/a", "?", code=2)
    (row,) = everstep("runs").out.splitlines()[1:]
    assert cells(row)[3:8] == ["failed (exit 2, ray 7)", "8", "-", "2", "-"]
    assert "goodput" in everstep("runs", "show", "runs/a").out
    assert everstep("report", "runs/a").code == 0


def test_no_runs(everstep: Any, tmp_path: Path) -> None:
    outcome = everstep("runs")
    assert outcome.code == 0
    assert "no runs in 'runs'" in outcome.out
    assert everstep("runs", "nowhere").err == "everstep: error: ROOT: received 'nowhere', is not a directory\n"


def test_show(everstep: Any, finished: Path) -> None:
    assert everstep("runs", "show", "runs/a", "--json").out == (finished / "run.json").read_text()
    text = everstep("runs", "show", "runs/a").out
    assert "validation accuracy         0.5\n" in text
    assert "train training_loss         NaN\n" in text
    assert "attempt 1" in text
    assert ": killed\n" in text
    assert everstep("runs", "show", ".").err.startswith("everstep: error: '.' is not a run directory")


def test_show_says_how_far_the_bits_on_a_gpu_can_be_repeated(everstep: Any, finished: Path) -> None:
    assert "exactness" not in everstep("runs", "show", "runs/a").out
    record = json.loads((finished / "run.json").read_text())
    replaced = ["gradient of an embedding", "gradient of max pooling"]
    record["exactness"] = {"level": "deterministic option", "replaced": replaced, "reason": "scatter can race"}
    (finished / "run.json").write_text(json.dumps(record))
    [line] = [line for line in everstep("runs", "show", "runs/a").out.splitlines() if line.startswith("exactness")]
    expected = "deterministic option (gradient of an embedding, gradient of max pooling): scatter can race"
    assert line.removeprefix("exactness").strip() == expected
