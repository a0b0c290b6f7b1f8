"""One core under every entry point: each passes the contract, and all of them end with the same weights."""

import functools
import sys
from pathlib import Path

import pytest
from entry_points import ENTRY_POINTS
from tests.children import forked

from everstep.run.record import read
from everstep.testing import entry_points

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns a function that returns the folder in which an entry point has run, and its record; it runs once."""

    @functools.cache
    def run(name):
        folder = tmp_path_factory.mktemp(name)
        return folder, read(Path(ENTRY_POINTS[name].run(folder)))

    return run


ON_TORCH = pytest.mark.daily("torch")  # the loop below all entry points is the same


@ON_TORCH
def test_the_same_weights_through_every_entry_point(finished):
    digests = {name: finished(name)[1]["weights_digest"] for name in ENTRY_POINTS}
    assert len(set(digests.values())) == 1, digests


@ON_TORCH
@pytest.mark.parametrize("check", entry_points.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_contract(finished, name, check):
    check(ENTRY_POINTS[name], finished(name)[0])


@ON_TORCH
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_bad_input(name, tmp_path):
    entry_points.check_bad_input(ENTRY_POINTS[name], tmp_path)


@ON_TORCH
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_more_epochs(finished, name, tmp_path):
    entry_points.check_more_epochs_are_as_if_planned(ENTRY_POINTS[name], tmp_path, finished(name)[1])


# `fit` is killed on every backend; on JAX tests/reliability/test_killed_runs.py kills an experiment, too.
DAILY = dict.fromkeys(ENTRY_POINTS, ON_TORCH) | {"fit": ()}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in DAILY.items()])
def test_killed_and_resumed(finished, name, tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("entry_points.py")), name, str(tmp_path)]
    start = functools.partial(forked.run, command, capture_output=True, text=True)
    entry_points.check_resumes_after_a_kill(
        ENTRY_POINTS[name], tmp_path, lambda environment: start(env=environment), finished(name)[1]
    )
