"""Programs that changed between saving and restoring: refused as a whole, or restored as a whole."""

from pathlib import Path

import pytest

from everstep.testing.reliability import structure
from everstep.testing.reliability.structural_changes import CHANGES, SAME

pytestmark = [pytest.mark.backend, pytest.mark.daily("torch")]

FEW = (
    "two layers in the other order",
    "a layer in float16",
    "Adam for SGD",
    "a metric added",
    "evaluated with a bias less",
)


def test_a_changed_structure_is_refused_as_a_whole(tmp_path: Path) -> None:
    few = [change for change in CHANGES if change.name in FEW]
    figures = structure.measure(tmp_path, few, SAME[1:2])
    assert figures.passed(), figures
    assert figures.changes == len(FEW)


@pytest.mark.full
def test_every_change_is_refused_as_a_whole(tmp_path: Path) -> None:
    figures = structure.measure(tmp_path)
    assert figures.passed(), figures
    assert figures.changes >= 30


def test_a_change_without_effect_would_be_noticed(tmp_path: Path) -> None:
    figures = structure.measure(tmp_path, SAME[:1], [])
    assert figures.silent == ["the same: not refused"]
    assert not figures.passed()


def test_the_names_are_distinct() -> None:
    names = [change.name for change in (*CHANGES, *SAME)]
    assert len(set(names)) == len(names)
