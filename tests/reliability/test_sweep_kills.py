"""A sweep under kills: every trial complete, once, with the bits of a run alone."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("optuna")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_twenty_trials_and_ten_kills(tmp_path: Path) -> None:
    from everstep.testing.reliability import sweep_kills

    figures = sweep_kills.measure(tmp_path, trials=20, workers=2, kills=10)
    assert figures.wrong == []
    assert (figures.complete, sum(figures.kills.values())) == (20, 10)
    assert figures.resumed
