"""The package used from its sources, on PYTHONPATH, without being installed; `tests/test_structure.py` trains so."""

import importlib.metadata

import everstep
from everstep.cli.doctor import extras
from everstep.run.environments import environment


def test_its_version_is_known_and_its_extras_are_not(monkeypatch):
    def from_name(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", from_name)
    assert environment()["packages"]["everstep"] == everstep.__version__
    [check] = extras()
    assert (check.ok, "pip install" in check.text) == (None, True)
