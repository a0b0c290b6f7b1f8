import re
import subprocess
import sys
import textwrap

import pytest

from everstep.testing.problems import raises_problem
from everstep.tracking.mlflow import MlflowNames, MlflowTarget, MlflowTracker, without_credentials
from everstep.tracking.syncing import sync

pytestmark = pytest.mark.slow


def test_credentials_in_addresses():
    shown = {
        "http://alice:p@ss@host:5000/x": "http://host:5000/x",
        "at http://token@host failed": "at http://host failed",
        "postgresql://a:b@host/db?sslmode=require": "postgresql://host/db?sslmode=require",
        "mssql://host/db?Password=hunter2&x=1": "mssql://host/db?Password=***&x=1",
        "sqlite:////data/a@b/mlflow.db": "sqlite:////data/a@b/mlflow.db",
    }
    assert {uri: without_credentials(uri) for uri in shown} == shown


@pytest.mark.parametrize(
    ("variable", "used"),
    [
        ("", "http://one:5000"),
        ("http://two:5000", "http://one:5000"),
        ("http://alice:secret-of-two@two:5000", "http://one:5000"),
        ("http://alice:secret-of-one@one:5000", "http://alice:secret-of-one@one:5000"),
    ],
)
def test_a_run_is_sent_where_it_belongs(monkeypatch, variable, used):
    """The variable may be that of other runs; where it names the same place, it has the credentials."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", variable)
    records = [MlflowTarget("http://bob:former-secret@one:5000", "id", "experiment", "name").record()]
    assert MlflowTarget.recorded(records).uri == used
    assert MlflowTarget.recorded(records, "http://three:5000").uri == "http://three:5000"


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns", "./x"])
def test_mlflow_keeps_no_runs_in_plain_folders(tmp_path, uri):
    with raises_problem(key="trainer.tracking.mlflow_uri", remedy="sqlite:///mlflow.db"):
        MlflowTracker(tmp_path, "id", MlflowNames("experiment"), uri)


def test_a_missing_package_is_named(tmp_path):
    code = f"""
        import importlib.util, sys
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == sys.argv[1] else real(name, *rest)
        from everstep.tracking.mlflow import MlflowNames, MlflowTracker
        try:
            MlflowTracker({str(tmp_path / "run")!r}, "id", MlflowNames("experiment"), sys.argv[2])
        except ValueError as error:
            print(error)
    """
    for missing, uri, extra in [("mlflow", "http://127.0.0.1:1", "[mlflow]"), ("alembic", "sqlite:///x.db", "[ui]")]:
        command = [sys.executable, "-c", textwrap.dedent(code), missing, uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert re.search(rf"pip install .*{re.escape(extra)}'", done.stdout)


def test_sync_needs_a_tracked_run(tmp_path):
    with raises_problem(key="DIR", reason="was not tracked with MLflow"):
        sync(tmp_path)
