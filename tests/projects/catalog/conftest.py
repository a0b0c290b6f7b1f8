"""Each test has a project and a cache of its own."""

from pathlib import Path

import pytest
from tests.projects.catalog.catalog_project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    return Project(tmp_path / "project")
