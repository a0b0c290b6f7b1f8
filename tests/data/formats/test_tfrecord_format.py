"""TFRecord files without TensorFlow: the frames of their records, and the features of examples."""

import struct

import numpy as np
import pytest
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from everstep.data.formats import BadFile
from everstep.data.formats.tfrecord import BrokenFrame, content, features, frames, is_gzip, whole_frames

RECORDS = [b"one", b"", b"three" * 100]


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(b"".join(map(framed, RECORDS)))
    return tmp_path / "x.tfrecord"


def test_frames_are_where_the_records_are(path):
    data = path.read_bytes()
    assert [data[frame.data : frame.data + frame.length] for frame in frames(path)] == RECORDS
    assert whole_frames(path) == (frames(path), None)
    assert frames(path)[-1].end == len(data)


def test_an_empty_file_has_no_records(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert frames(tmp_path / "empty") == []
    assert whole_frames(tmp_path / "empty") == ([], None)
    assert content(tmp_path / "empty").records == 0


def test_a_file_that_ends_inside_a_record(path):
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BrokenFrame) as error:
        frames(path)
    assert (error.value.offset, error.value.reason) == (35, "the file ends inside a record")
    found, broken = whole_frames(path)
    assert (len(found), broken.offset) == (2, 35)


def test_the_digest_sees_records_and_their_order(path):
    """The digests are in the records of runs: they must stay as they are."""
    assert content(path) == (3, "73d63c80098e9d95")
    path.write_bytes(b"".join(map(framed, reversed(RECORDS))))
    assert content(path).digest != "73d63c80098e9d95"


def test_a_file_that_is_compressed(path, tmp_path):
    assert not is_gzip(path)
    (tmp_path / "packed").write_bytes(b"\x1f\x8b...")
    assert is_gzip(tmp_path / "packed")


def test_features_are_those_that_tensorflow_writes():
    tf = pytest.importorskip("tensorflow")
    example = tf.train.Example()
    named = example.features.feature
    named["name"].bytes_list.value.append(b"cat")
    named["sizes"].int64_list.value.extend([-3, 2**62])
    named["x"].float_list.value.extend([0.1, np.inf])
    named["none"].int64_list.SetInParent()
    _ = named["without a kind"]
    assert features(example.SerializeToString()) == {
        "name": ("bytes", [b"cat"]),
        "sizes": ("int64", [-3, 2**62]),
        "x": ("float", [np.float32(0.1), np.inf]),
        "none": ("int64", []),
    }


def test_what_is_no_example():
    with pytest.raises(BadFile, match=r"is not a tf.train.Example \(3 bytes\)"):
        features(b"\xff\xff\xff")
