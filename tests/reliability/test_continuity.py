"""Curves over kills; the everyday version is in test_killed_runs.py, beside the state of the same run."""

import collections
import os
from pathlib import Path

import pytest

from everstep.testing.reliability import continuity

pytestmark = pytest.mark.slow

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


@pytest.mark.full
@pytest.mark.backend
def test_each_point_is_there_once_in_all_places(tmp_path: Path) -> None:
    figures = continuity.measure(tmp_path, BACKEND, steps=60, kills=1)
    assert figures.passed(), figures.wrong
    assert set(figures.points) == {"history.csv", "TensorBoard", "MLflow"}
    assert min(figures.points.values()) > 20


def test_missing_duplicate_and_different_entries_are_found() -> None:
    expected = collections.Counter([("loss", 7, 0.5), ("loss", 14, 0.4), ("loss", 21, 0.3)])
    found = collections.Counter([("loss", 7, 0.5), ("loss", 7, 0.5), ("loss", 21, 0.2)])
    assert len(list(continuity.differences(found, expected))) == 4
    assert list(continuity.differences(expected, expected)) == []


def test_a_speed_that_is_logged_late_may_be_missing_in_either_run() -> None:
    once, twice = ("train/mfu", 7, 0.0), ("train/mfu", 14, 0.0)
    assert list(continuity.differences(collections.Counter([once]), collections.Counter([twice]))) == []
    [found] = continuity.differences(collections.Counter([twice, twice]), collections.Counter([twice]))
    assert "is there 2 times" in found
