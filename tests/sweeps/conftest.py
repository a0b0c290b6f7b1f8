"""Sweeps in an empty directory, over the functions of `sweep_objectives`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import everstep, shell  # noqa: F401
from tests.launch.conftest import here  # noqa: F401
from tests.report.conftest import browser, page  # noqa: F401

HERE = Path(__file__).parent

optuna = pytest.importorskip("optuna")


@pytest.fixture
def objectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with the functions, importable here and in the processes of trials, which run in this directory."""
    (tmp_path / "sweep_objectives.py").write_text((HERE / "sweep_objectives.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import sweep_objectives

    yield sweep_objectives
    sys.modules.pop("sweep_objectives", None)


@pytest.fixture
def sweep(objectives: Any, tmp_path: Path) -> Callable[..., Any]:
    """`everstep.sweep`, in the directory `sweep`."""
    from everstep.sweeps.sweeping import sweep as run

    def call(target: Any, space: Any, **settings: Any) -> Any:
        return run(target, space, **{"sweep_dir": tmp_path / "sweep", "verbose": False, **settings})

    return call
