"""What several processes require of each other before they train one run."""

import types

import pytest
from tests.pretended_gang import together

from everstep.errors import UsageError
from everstep.run import processes


def refused(code="one", config="units: 30"):
    """Returns the error of each of two processes, of which the second one has this code and configuration."""

    def work(gang, rank):
        own = config if rank else "units: 30"
        run = types.SimpleNamespace(code=lambda: {"commit": code if rank else "one"})
        try:
            processes.agree_on_program(gang, f"seed: 1\n{own}\nsteps: 2", run)
        except UsageError as error:
            return error

    return together(2, work)


def test_processes_that_are_alike_agree():
    assert refused() == [None, None]


@pytest.mark.parametrize(
    ("differs", "reason", "remedy"),
    [
        (
            {"config": "units: 31"},
            "the configuration differs between the processes: 'units: 30' and 'units: 31', on rank 0 and rank 1 (pid 1",
            "start every process with the same command",
        ),
        (
            {"code": "two"},
            "the code differs between the processes: {'commit': 'one'} on rank 0, but {'commit': 'two'} on rank 1",
            "start every process from the same code",
        ),
    ],
    ids=["configuration", "code"],
)
def test_a_difference_is_named_by_all(differs, reason, remedy):
    for error in refused(**differs):
        assert error.reason.startswith(reason)
        assert error.remedy == remedy
