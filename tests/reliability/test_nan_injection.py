"""A sample that spoils its batch: nothing bad is saved, whatever the run is configured to do about it."""

import pytest

from everstep.testing.reliability import nan_injection

pytestmark = pytest.mark.backend


@pytest.mark.parametrize(
    "kind",
    [nan_injection.KINDS[0], *(pytest.param(one, marks=pytest.mark.daily("torch")) for one in nan_injection.KINDS[1:])],
)
def test_rolls_back_and_skips_the_batch(tmp_path, kind):
    outcome = nan_injection.run(tmp_path / "run", kind, sample=204, trials=3)
    assert (outcome.error, outcome.bad) == ("", [])
    assert outcome.checkpoints[-1] == 40
    (skipped,) = outcome.skipped
    assert skipped["epoch"] == 0


def test_stops_where_it_may_not_go_back(tmp_path):
    outcome = nan_injection.run(tmp_path / "run", "loss", sample=204, trials=0)
    assert "the training loss is nan at step" in outcome.error
    assert outcome.bad == []
    assert outcome.checkpoints


def test_continues_without_saving_if_configured(tmp_path):
    outcome = nan_injection.run(tmp_path / "run", "update", sample=204, trials=-1)
    assert "training is done, but its last state is not saved: model/dense/kernel" in outcome.error
    assert outcome.bad == []
    assert max(outcome.checkpoints) < 40
