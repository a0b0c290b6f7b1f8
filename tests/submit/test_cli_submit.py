"""`everstep submit`: bad requests are answered in one line, and --dry-run prints the job."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture
def project(tmp_path: Path) -> Path:
    classes = ("data_loader", "preprocessor", "model_builder", "evaluator")
    config = {"src_code_path": "src", "project_name": "digits", "epochs": 1}
    config |= {f"{name}_class": "parts.Part" for name in classes}
    for folder in ("src", "runs/a"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "RUN_NAME: received '', expected one run, or a command after --"),
        (["a", "b"], "RUN_NAME: received 'a b', expected one run"),
        (["a", "--", "true"], "RUN_NAME: received 'a true', expected one run"),
        (["--", "true"], "--model-dir: is required for a command: name the directory that the command trains in"),
        (
            ["--model-dir", "runs/c", "--", "no-such-program"],
            "COMMAND: received 'no-such-program', there is no such program",
        ),
        (["a", "--model-dir", "runs/c"], "--model-dir: received 'runs/c', a run of a project is in runs/a"),
        (["a", "--on", "slrum"], "--on: received 'slrum', there is no such executor: did you mean 'slurm'?"),
        (["a", "--max-restarts", "-1"], "--max-restarts: received -1, must be 0 or more"),
        (["a", "--project-root", "nowhere"], "--project-root: received 'nowhere', is not a folder"),
        (["a", "--data-dir", "nowhere"], "data_dir: received '"),
        (["c"], "run_name: '"),
        (["a", "--backend", "jaxx"], "--backend: received 'jaxx', unknown backend: did you mean 'jax'?"),
        (["--model-dir", "runs/c", "--eval-only", "--", "true"], "--eval-only: is an option of a project's run"),
        (["--model-dir", "runs/c", "--backend=jax", "--", "true"], "--backend: is an option of a project's run"),
    ],
)
def test_bad_requests(everstep: Any, project: Path, words: list[str], message: str) -> None:
    outcome = everstep("submit", *words)
    assert outcome.code == 2
    assert outcome.err.startswith(f"everstep: error: {message}")
    assert outcome.err.count("\n") == 1
    assert [path.name for path in (project / "runs" / "a").iterdir()] == ["config.yaml"]


def test_dry_run(everstep: Any, project: Path) -> None:
    outcome = everstep("submit", "a", "--dry-run", "--max_restarts=3")
    python, module, *job, dashes, _, _, everstep_, run, name, option, root = outcome.out.split()
    assert (python, module, job[0], job[2:]) == (
        sys.executable,
        "-m",
        "everstep.submit.job",
        ["--max-restarts", "3"],
    )
    assert Path(job[1]).parent == project / "runs" / "a" / "submissions"
    assert (dashes, everstep_, run, name, option, root) == (
        "--",
        "everstep",
        "run",
        "a",
        "--project-root",
        str(project),
    )
    assert [path.name for path in (project / "runs" / "a").iterdir()] == ["config.yaml"]


def test_options_of_the_run_are_passed_on(everstep: Any, project: Path) -> None:
    options = ["--eval-only", "--backend", "jax", "--allow-change", "epochs", "--allow-change", "seed"]
    outcome = everstep("submit", "a", "--dry-run", *options)
    assert outcome.out.endswith(f" run a --project-root {project} {' '.join(options)}\n")


def test_the_arguments_of_a_command_are_not_changed(everstep: Any, project: Path) -> None:
    command = [sys.executable, "train.py", "--model_dir=runs/c", "--", "two words"]
    outcome = everstep("submit", "--dry-run", "--model-dir", "runs/c", "--", *command)
    assert outcome.out.endswith(f" -- {sys.executable} train.py --model_dir=runs/c -- 'two words'\n")
    assert not Path("runs/c").exists(), "nothing was submitted"
