"""`everstep runs`."""

import json
from pathlib import Path
from typing import Any

import pytest

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


def test_a_table_of_runs(everstep: Any, finished: Path) -> None:
    Run.open("other/b", "mnist/cnn", "jax").begin(0, "", code={})
    for words in ([], ["runs"], ["list", "runs"]):
        header, row = everstep("runs", *words).out.splitlines()
        assert header.split() == ["DIRECTORY", "EXPERIMENT", "BACKEND", "STATUS", "STEP", "ATTEMPTS", "METRICS"]
        cells = ["runs/a", "mnist/mlp", "jax", "finished", "8", "2", "validation_loss=0.25", "accuracy=0.5"]
        assert row.split() == cells
        assert header.index("METRICS") == row.index("validation_loss")
    assert everstep("runs", ".").out.splitlines()[1].split()[:3] == ["other/b", "mnist/cnn", "jax"]
    assert json.loads(everstep("runs", "runs", "--json").out)[0]["directory"] == "runs/a"


def test_no_runs(everstep: Any, tmp_path: Path) -> None:
    outcome = everstep("runs")
    assert outcome.code == 0
    assert "no runs in 'runs'" in outcome.out
    assert everstep("runs", "nowhere").err == "everstep: error: there is no directory 'nowhere' to look for runs in\n"


def test_show(everstep: Any, finished: Path) -> None:
    assert everstep("runs", "show", "runs/a", "--json").out == (finished / "run.json").read_text()
    text = everstep("runs", "show", "runs/a").out
    assert "validation accuracy         0.5\n" in text
    assert "train training_loss         NaN\n" in text
    assert "attempt 1" in text
    assert ": killed\n" in text
    assert everstep("runs", "show", ".").err.startswith("everstep: error: '.' is not a run directory")
