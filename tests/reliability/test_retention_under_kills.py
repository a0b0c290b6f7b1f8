"""A process killed between saves: what is on disk is what the rule keeps, and what others put there."""

from pathlib import Path

import pytest

from everstep.testing.reliability import retention_under_kills
from everstep.testing.reliability.retention_under_kills import FIRST, differences, kept_of
from everstep.testing.reliability.saver import Plan, metrics_of, state_of, temporaries

pytestmark = pytest.mark.slow


def test_after_a_kill_the_rule_holds(tmp_path: Path) -> None:
    figures = retention_under_kills.measure(tmp_path, saves=12, kills=1)
    assert figures.passed(), figures.wrong
    assert figures.saves == 12
    assert figures.kept == len(kept_of(range(FIRST, FIRST + 12)))


@pytest.mark.full
def test_after_many_kills_the_rule_holds(tmp_path: Path) -> None:
    figures = retention_under_kills.measure(tmp_path, saves=150, kills=10, seed=1)
    assert figures.passed(), figures.wrong


def test_violations_of_the_rule_are_named() -> None:
    newest = FIRST + 40
    before, present = kept_of(range(FIRST, newest - 9)), kept_of(range(FIRST, newest + 1))
    assert list(differences(present, before, newest)) == []
    assert list(differences(present, before, newest + 1)) == []  # one save in flight
    assert list(differences(present, before, newest + 2)) == [
        f"step {newest + 1} was committed, but the newest is {newest}"
    ]
    gone, extra = min(present), min(set(range(FIRST, newest)) - present)
    assert list(differences(present - {gone}, before, newest)) == [f"at step {newest}, [{gone}] should be there"]
    assert list(differences(present | {extra}, before, newest)) == [f"at step {newest}, [{extra}] should be removed"]


def steps_after_saving(directory: Path, steps: range) -> list[int]:
    checkpointer = Plan(str(directory), 400, 0).open()
    for step in steps:
        checkpointer.save(step, state_of(step, 400), {"step": step}, metrics_of(step))
    checkpointer.close()
    return checkpointer.steps()


def test_a_folder_with_the_number_of_a_step_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "thesis.txt").write_text("the only copy")
    assert steps_after_saving(tmp_path, range(1, 4)) == [2, 3]
    assert [path.read_text() for path in tmp_path.rglob("thesis.txt")] == ["the only copy"]


def test_a_file_that_a_kill_left_does_not_end_saving(tmp_path: Path) -> None:
    (tmp_path / ".everstep-0123456789ab-probe").touch()
    assert steps_after_saving(tmp_path, range(1, 14)) == [12, 13]
    assert temporaries(tmp_path) == set()


def test_files_of_others_are_watched(tmp_path: Path) -> None:
    retention_under_kills.put_foreign_things(tmp_path)
    before = retention_under_kills.fingerprints(tmp_path)
    (tmp_path / "note.txt").write_text("changed")
    (tmp_path / "007").rmdir()
    after = retention_under_kills.fingerprints(tmp_path)
    assert {name for name in before if after.get(name) != before[name]} == {"note.txt", "007"}
