"""An epoch with a kill: every sample exactly once."""

import os
from pathlib import Path

import pytest

from everstep.testing.reliability import ledger

pytestmark = pytest.mark.slow

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


@pytest.mark.backend
@pytest.mark.daily("jax")
def test_each_sample_is_learned_from_once(tmp_path: Path) -> None:
    figures = ledger.measure(tmp_path, BACKEND, samples=6_000, kills=1)
    assert figures.passed(), figures.line()
    assert (figures.samples, figures.steps, figures.processes) == (6_000, 100, (1, 1))


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_each_sample_is_learned_from_once_by_changing_numbers_of_processes(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    figures = ledger.measure(tmp_path, backend, samples=12_000, kills=2, sizes=(2, 4, 3))
    assert figures.passed(), figures.line()
    assert figures.processes == (2, 4, 3)


def test_a_repeated_or_missing_sample_does_not_pass() -> None:
    good = ledger.Figures(samples=120, kills=1, repeated=0, missing=0, steps=2, lost=0)
    assert good.passed()
    assert not ledger.Figures(120, 1, repeated=1, missing=0, steps=2, lost=0).passed()
    assert not ledger.Figures(120, 1, repeated=0, missing=1, steps=2, lost=0).passed()
