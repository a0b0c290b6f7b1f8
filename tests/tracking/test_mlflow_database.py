"""A database of MLflow's is there whole, or not at all."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("sqlalchemy")

from mlflow.tracking import MlflowClient

from everstep.tracking.mlflow import create_database

pytestmark = pytest.mark.slow

MAKE = """
import sys
from pathlib import Path
from everstep.tracking.mlflow import create_database
create_database(Path(sys.argv[1]))
"""


def _written(folder):
    """Whether tables are being made; SQLite's journal may be gone between being listed and being asked."""
    sizes = []
    for entry in folder.glob(".everstep*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(entry.stat().st_size)
    return any(size > 4096 for size in sizes)


def test_killed_while_it_is_made(tmp_path):
    """As soon as there is a file with tables in it; the next attempt makes a whole one."""
    database = tmp_path / "mlflow.db"
    process = subprocess.Popen([sys.executable, "-c", MAKE, str(database)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if _written(tmp_path):
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    assert not database.exists()
    for leftover in tmp_path.glob(".everstep-mlflow-*"):
        os.utime(leftover, (0, 0))
    create_database(database)
    assert [path.name for path in tmp_path.iterdir() if path.name != "mlartifacts"] == ["mlflow.db"]
    client = MlflowClient(f"sqlite:///{database}")
    assert client.get_experiment_by_name(client.get_experiment(client.create_experiment("mine")).name)


def test_one_that_is_there_is_left_alone(tmp_path):
    database = tmp_path / "mlflow.db"
    database.write_bytes(b"something")
    create_database(database)
    assert database.read_bytes() == b"something"
