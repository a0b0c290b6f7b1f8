"""Full, read-only and forbidden disks: one clear error, nothing lost, and saving goes on when it can."""

from pathlib import Path

import pytest

from everstep.testing.reliability import bad_disks

pytestmark = pytest.mark.slow


def test_files_that_may_not_grow(tmp_path: Path) -> None:
    figures = bad_disks.measure("limited", tmp_path, trials=3)
    assert figures.passed(), figures.wrong


@pytest.mark.parametrize(
    "case",
    [
        "full",
        "forbidden",
        pytest.param("limited", marks=pytest.mark.full),
        pytest.param("read_only", marks=pytest.mark.full),
    ],
)
def test_a_bad_disk(case: str) -> None:
    figures = bad_disks.measure_apart(case, trials=3)
    if figures.skipped:
        pytest.skip(figures.skipped)
    assert figures.passed(), figures.wrong
    assert figures.trials == 3


def test_a_good_disk_does_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bad_disks.CASES, "limited", (bad_disks.healthy, "File too large"))
    figures = bad_disks.measure("limited", tmp_path, trials=1)
    assert figures.wrong[0] == "trial 0: nothing was raised"
    assert not figures.passed()
