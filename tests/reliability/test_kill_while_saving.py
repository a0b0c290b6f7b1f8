"""A process killed while it saves: the newest checkpoint is whole, and not old."""

from pathlib import Path

import pytest

from everstep.testing.reliability import kill_while_saving
from everstep.testing.reliability.kill_while_saving import Figures, Kill
from everstep.testing.reliability.saver import is_whole, state_of

pytestmark = pytest.mark.slow


def test_after_a_kill_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    figures = kill_while_saving.measure(tmp_path, kills=2, size=4_000_000)
    assert figures.passed(), figures.line()
    assert len(figures.kills) == 2


@pytest.mark.full
def test_after_many_kills_the_newest_checkpoint_is_whole(tmp_path: Path) -> None:
    figures = kill_while_saving.measure(tmp_path, kills=20, size=20_000_000, seed=1)
    assert figures.passed(), figures.line()
    assert sum(kill.amid for kill in figures.kills) >= 5, "the kills do not hit writes"


def test_a_checkpoint_that_is_old_or_not_whole_does_not_pass() -> None:
    good = Kill(amid=True, whole=True, age=1)
    assert Figures(1, [good]).passed()
    assert not Figures(1, [good, Kill(amid=True, whole=True, age=2)]).passed()
    assert not Figures(1, [good, Kill(amid=True, whole=False, age=0)]).passed()


def test_the_state_of_another_step_is_not_whole() -> None:
    state = state_of(3, 400)
    assert is_whole(3, 400, state, {"step": 3})
    assert not is_whole(4, 400, state, {"step": 4})
    assert not is_whole(3, 400, state | {"model/0": state_of(4, 400)["model/0"]}, {"step": 3})
