"""Projects of flows, with an empty MLflow database that is made once: to make one takes longer than to train."""

import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from flow_project import write_project

from everstep.flow import run_flow
from everstep.tracking.mlflow import create_database


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    create_database(path)
    return path


@pytest.fixture
def bare_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that nothing has run in; its name, and so its package, is its own."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return write_project(tmp_path / "project", f"project-{tmp_path.name.replace('.', '-')}")


@pytest.fixture
def project(bare_project: Path, empty_database: Path) -> Path:
    shutil.copyfile(empty_database, bare_project / "mlflow.db")
    return bare_project


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Any:
    """A run of `Numbers_B` that ended, of a project in git, with a change that is not committed."""
    root = write_project(tmp_path_factory.mktemp("finished") / "project", "project-finished")
    shutil.copyfile(empty_database, root / "mlflow.db")
    (root / ".gitignore").write_text("data/\nruns/\nmlflow.db\nmlartifacts/\n__pycache__/\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=root, check=True)
    with open(root / "train.py", "a", encoding="utf-8") as file:
        file.write("# not committed\n")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        warnings.simplefilter("ignore", DeprecationWarning)
        return run_flow("Numbers_B", ["Numbers_B.validation_split=0.25", "Numbers_B.seed=7"], root, verbose=False)
