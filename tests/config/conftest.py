"""Fixtures for the tests of this folder."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import gin.config
import pytest

from . import sample_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a project of the user's, which is the current directory; gone from this process afterwards."""
    root = tmp_path / "home"
    monkeypatch.setattr(sys, "path", [*sample_project.write(root), *sys.path])
    monkeypatch.chdir(root)
    importlib.invalidate_caches()
    with gin.config.interactive_mode():  # its module is imported anew by every test that uses it
        yield root
    gin.clear_config()
    for name in [name for name in sys.modules if name.partition(".")[0] in sample_project.MODULES]:
        del sys.modules[name]
