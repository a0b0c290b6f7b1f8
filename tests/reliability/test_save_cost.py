"""Training goes on while a checkpoint is written."""

from pathlib import Path

import pytest

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.testing.reliability import save_cost
from everstep.testing.reliability.save_cost import Figures, Pair

pytestmark = pytest.mark.backend


@pytest.mark.daily("torch")
def test_a_save_hardly_keeps_training_waiting(tmp_path: Path) -> None:
    figures = save_cost.measure(tmp_path, 8_000_000, 0.5, pairs=2)
    assert 7_900_000 < figures.size < 8_200_000
    assert all(0 < pair.blocked < pair.saving for pair in figures.pairs)
    assert min(pair.blocked for pair in figures.pairs) < 0.25
    kept = OrbaxCheckpointer(tmp_path / "checkpoints", run="cost")
    assert len(kept.steps()) == 2
    kept.close()


def test_the_median_counts() -> None:
    cheap, dear = Pair(25.0, 25.5, 0.2, 1.0), Pair(25.0, 27.0, 0.2, 1.0)
    assert Figures(1, 0.05, [cheap, cheap, dear]).passed()
    assert not Figures(1, 0.05, [cheap, dear, dear]).passed()
