"""Fixtures that the tests of components share."""

import pytest
from components_project import write_data

from everstep.projects.components import orchestrator
from everstep.projects.project_tracking import Tracking


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The folder of the MNIST images."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def untracked(monkeypatch):
    """Runs without MLflow."""
    monkeypatch.setattr(orchestrator, "create_tracking", lambda *_: Tracking())


@pytest.fixture
def quiet(untracked, monkeypatch):
    """Runs without MLflow and without pages."""
    monkeypatch.setattr(orchestrator, "write_pages", lambda *_: None)
