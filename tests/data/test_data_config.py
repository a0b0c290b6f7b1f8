import pytest

from everstep.data import DataConfig
from everstep.errors import UsageError


def test_defaults_work():
    DataConfig().validate()


def test_numbers_are_checked_together():
    with pytest.raises(UsageError) as error:
        DataConfig(global_batch_size=0, shuffle_buffer_size=-1).validate()
    assert "global_batch_size: received 0, must be at least 1" in str(error.value)
    assert "shuffle_buffer_size: received -1, must be at least 0" in str(error.value)
