"""Sweeps over real runs, by the command line: pruned within one evaluation, reported, trained longer."""

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.tracking.history import read_history

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
SWEEP = ["sweep", "regression/sine", f"{RATE}=1e-2,1.1e-2,1.2e-2,1.3e-2,1e-7", "task.model.units=16"]
LENGTH = ["trainer.steps_per_loop=20", "trainer.validation_interval=20", "trainer.train_steps=400"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "jax")


def table() -> tuple[Path, dict[str, Any]]:
    (path,) = Path("runs").glob("sweep-*")
    return path, json.loads((path / "trials.json").read_text())


def record(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run.json").read_text())


@pytest.mark.parametrize("pruner", ["median", "hyperband"])
def test_a_pruned_trial_stops_at_the_evaluation_and_the_best_is_trained_longer(pruner, capsys):
    """Evaluations are milliseconds apart: a worker that only looked now and then would be late."""
    assert main([*SWEEP, *LENGTH, "--pruner", pruner]) == 0
    directory, found = table()
    last = found["trials"][-1]
    assert last["state"] == "pruned"
    pruned = [row for row in found["trials"] if row["state"] == "pruned"]
    for row in pruned:
        _, rows = read_history(directory / row["directory"] / "history.csv")
        evaluated = [step for step, cells in rows if cells.get("validation_loss")]
        assert row["steps"] == record(directory / row["directory"])["step"] == evaluated[-1]
        assert (directory / row["directory"] / "checkpoints" / str(row["steps"])).is_dir()
        assert (directory / row["directory"] / "reports" / "report.html").is_file()
    saved = sum(400 - row["steps"] for row in pruned)
    assert found["steps_saved"] == saved
    assert f"{saved} by pruning" in capsys.readouterr().out
    if pruner == "median":
        assert last["steps"] == 20, "at its first evaluation"

    assert main([*SWEEP, *LENGTH[:2], "trainer.train_steps=500", "--pruner", pruner, "--resume-best", "1"]) == 0
    directory, now = table()
    (longer,) = [row for row in now["trials"] if row["continues"] is not None]
    assert (longer["continues"], longer["state"], longer["steps"]) == (found["best"], "complete", 500)
    attempts = record(directory / longer["directory"])["attempts"]
    assert [(one["from_step"], one["to_step"]) for one in attempts] == [(0, 400), (400, 500)]
