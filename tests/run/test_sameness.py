"""What identifies the data of a run: that of the streams it is made of, too."""

import types

import numpy as np
import pytest

from everstep.data import ArrayStream
from everstep.data.mapped import MappedStream
from everstep.data.stream import Stream
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


class Opaque(Stream):
    """Batches that nobody but the stream knows; its files, where it names some."""

    def __init__(self, files=()):
        super().__init__(repeat=True, batches_per_epoch=3)
        self.names = files

    @property
    def files(self):
        return self.names

    def open(self, epoch, batch):
        return iter(())


def opaque(batch, files=()):
    trainer = types.SimpleNamespace(train_stream=Opaque(files), validation_stream=None, train_example=batch)
    return fingerprints(trainer)


def test_a_first_batch_stands_for_data_that_nobody_knows():
    before, after = opaque({"x": np.zeros(2)}), opaque({"x": np.ones(2)})
    assert before["train"]["first_batch"]["x"] != after["train"]["first_batch"]["x"]
    check_data(before, after, [])  # perhaps nobody seeds the shuffling: no reason to refuse


def test_files_are_looked_into(tmp_path):
    file = tmp_path / "train-0.tfrec"
    file.write_bytes(b"abc")
    before = opaque(np.zeros(2), [str(file)])
    assert before["train"]["files"]["train-0.tfrec"]["bytes"] == 3
    assert "first_batch" not in before["train"]
    file.write_bytes(b"abd")
    after = opaque(np.zeros(2), [str(file)])
    with pytest.raises(UsageError, match="file train-0.tfrec has other content"):
        check_data(before, after, [])
    del before["train"]["files"]  # as an older version has recorded it
    check_data(before, after, [])
