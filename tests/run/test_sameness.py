"""What identifies the data of a run: that of the streams it is made of, too."""

import types

import numpy as np
import pytest

from everstep.data import ArrayStream
from everstep.data.mapped import MappedStream
from everstep.errors import UsageError
from everstep.multitask.streams import JointStream
from everstep.run.sameness import check_data, fingerprints


def prints(first, second):
    parts = {"one": ArrayStream({"x": np.full((4, 1), first)}, 2), "two": ArrayStream(np.full((4, 1), second), 2)}
    stream = JointStream({**parts, "two": MappedStream(parts["two"], lambda batch: batch)})
    return fingerprints(types.SimpleNamespace(train_stream=stream, validation_stream=None))


def test_parts_of_a_stream_are_looked_at():
    before = prints(1.0, 2.0)
    assert {"kind", "one/x", "two", "two/kind"} <= set(before["train"])
    check_data(before, prints(1.0, 2.0), [])
    with pytest.raises(UsageError, match="the run was trained on other data: array two has other content"):
        check_data(before, prints(1.0, 3.0), [])
    check_data(before, prints(5.0, 2.0), ["data"])
