"""Which command installs an extra here."""

import importlib.metadata
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everstep import extras


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that this package was installed from a place."""

    def pretend(found: dict[str, Any] | None) -> None:
        text = None if found is None else json.dumps(found)
        monkeypatch.setattr(
            importlib.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text)
        )
        extras._origin.cache_clear()

    yield pretend
    monkeypatch.undo()
    extras._origin.cache_clear()


def test_of_a_package_from_an_index(installed: Any) -> None:
    installed(None)
    assert extras.install_command("s3") == "pip install 'everstep[s3]'"


def test_of_a_clone(installed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    url = f"file://{tmp_path}/my%20clone"
    installed({"url": url, "dir_info": {}})
    assert extras.install_command("s3") == "pip install 'everstep[s3]'"  # it is gone
    (clone / "pyproject.toml").touch()
    installed({"url": url, "dir_info": {}})
    assert extras.install_command("s3") == f"pip install '{clone}[s3]'"
    installed({"url": url, "dir_info": {"editable": True}})
    assert extras.install_command("s3") == f"pip install -e '{clone}[s3]'"
    monkeypatch.chdir(clone)
    assert extras.install_command("s3") == "pip install -e '.[s3]'"


def test_of_a_repository(installed: Any) -> None:
    installed({"url": "https://example.org/everstep.git", "vcs_info": {"vcs": "git", "commit_id": "1"}})
    assert extras.install_command("s3") == "pip install 'everstep[s3] @ git+https://example.org/everstep.git'"


def test_of_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    extras._origin.cache_clear()
    try:
        assert extras.install_command("s3").startswith("pip install -e '")
    finally:
        extras._origin.cache_clear()
