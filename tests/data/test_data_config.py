"""Checks of the data section of a configuration."""

import pytest

from everstep.data import DataConfig
from everstep.errors import UsageError


def test_the_defaults_are_valid():
    DataConfig().validate()


def test_all_low_numbers_are_reported_at_once():
    with pytest.raises(UsageError) as error:
        DataConfig(global_batch_size=0, shuffle_buffer_size=-1).validate()
    assert [(problem.key, problem.received) for problem in error.value.problems] == [
        ("global_batch_size", 0),
        ("shuffle_buffer_size", -1),
    ]
    assert "global_batch_size: received 0, must be at least 1" in str(error.value)
    assert "shuffle_buffer_size: received -1, must be at least 0" in str(error.value)
