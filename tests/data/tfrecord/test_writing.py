"""Writing TFRecord files: examples, their keys, shards, and drafts."""

import dataclasses

import numpy as np
import pytest

from everstep.data.files import find_files
from everstep.data.tfrecord import TfExampleBuilder, TfExampleFeatureKeyBase, write_tfrecords
from everstep.testing.problems import raises_problem

tf = pytest.importorskip("tensorflow")


def examples(count):
    return [TfExampleBuilder().add_ints_feature("id", number).example for number in range(count)]


def ids(files, compression=""):
    read = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(files, compression)]
    return [example.features.feature["id"].int64_list.value[0] for example in read]


def test_features_of_every_kind():
    builder = TfExampleBuilder().add_bytes_feature("text", ["é", b"\x00"]).add_bytes_feature("one", "a")
    builder.add_ints_feature("ints", (1, -(2**62))).add_ints_feature("array", np.arange(4).reshape(2, 2))
    builder.add_floats_feature("floats", [0.5, 2]).add_floats_feature("scalar", np.float64(1.5))
    builder.add_feature_dict({"ready": tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))})
    feature = builder.example.features.feature
    assert list(feature["text"].bytes_list.value) == ["é".encode(), b"\x00"]
    assert list(feature["one"].bytes_list.value) == [b"a"]
    assert list(feature["ints"].int64_list.value) == [1, -(2**62)]
    assert list(feature["array"].int64_list.value) == [0, 1, 2, 3]
    assert list(feature["floats"].float_list.value) == [0.5, 2.0]
    assert list(feature["scalar"].float_list.value) == [1.5]
    assert list(feature["ready"].int64_list.value) == [7]
    assert tf.train.Example.FromString(builder.serialized_example) == builder.example


def test_a_builder_can_be_reused():
    builder = TfExampleBuilder().add_ints_feature("id", 1)
    first = builder.example
    assert not builder.reset().example.features.feature
    builder.set(first).add_ints_feature("id", 2)
    assert first.features.feature["id"].int64_list.value == [1]


def test_values_of_the_wrong_kind_are_refused():
    with raises_problem(key="id", received="a", reason="a feature of this type"):
        TfExampleBuilder().add_ints_feature("id", "a")
    with raises_problem(key="id", received=[[1, 2]], reason="a feature of this type"):
        TfExampleBuilder().add_floats_feature("id", [[1, 2]])


class ImageKey(TfExampleFeatureKeyBase):
    encoded: str = "image/encoded"


@dataclasses.dataclass(init=False)
class SizedKey(ImageKey):
    height: str = "image/height"


@dataclasses.dataclass
class PlainKey(ImageKey):
    width: str = "image/width"


def test_keys_with_a_prefix():
    assert (PlainKey().encoded, PlainKey("left").width) == ("image/encoded", "left/image/width")
    assert (SizedKey().encoded, SizedKey("").height) == ("image/encoded", "image/height")
    left, right = SizedKey("left"), SizedKey("right")
    assert (left.encoded, right.height) == ("left/image/encoded", "right/image/height")
    assert SizedKey.encoded == "image/encoded"


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_one_file_is_written(tmp_path, compression):
    path = tmp_path / "new" / "a.tfrecord"
    assert write_tfrecords(path, iter(examples(5)), compression) == [str(path)]
    assert ids([str(path)], compression) == list(range(5))
    assert [file.name for file in path.parent.iterdir()] == ["a.tfrecord"]


def test_several_shards_are_written(tmp_path):
    files = write_tfrecords(str(tmp_path / "train.v1.tfrecord"), examples(7), shards=3)
    assert [file.rpartition("/")[2] for file in files] == [f"train-0000{n}-of-00003.v1.tfrecord" for n in range(3)]
    assert [ids(file) for file in files] == [[0, 3, 6], [1, 4], [2, 5]]
    assert write_tfrecords(str(tmp_path / "train.v1.tfrecord"), examples(3), shards=3) == files
    with raises_problem(key="path", received=files[0], reason="and 2 more were written earlier"):
        write_tfrecords(str(tmp_path / "train.v1.tfrecord"), examples(7), shards=2)


def test_records_that_are_not_examples(tmp_path):
    sequence = tf.train.SequenceExample()
    given = [b"raw", TfExampleBuilder().add_ints_feature("id", 3), sequence]
    (file,) = write_tfrecords(tmp_path / "a", given)
    records = [record.numpy() for record in tf.data.TFRecordDataset(file)]
    assert records == [b"raw", given[1].serialized_example, sequence.SerializeToString()]


def test_drafts_are_not_read(tmp_path):
    """While files are written, and after a kill, the usual globs match none of the drafts."""

    def watched():
        for example in examples(3):
            yield example
            assert not list(tmp_path.glob("train*"))
            assert len(list(tmp_path.iterdir())) == 2
            with raises_problem(key="input_path", reason="no file matches"):
                find_files(f"{tmp_path}/*")

    files = write_tfrecords(tmp_path / "train.tfrecord", watched(), shards=2)
    assert find_files(f"{tmp_path}/*") == files
    (tmp_path / ".everstep-train-00000-of-00002.tfrecord").write_bytes(b"half of a file, left by a killed process")
    assert write_tfrecords(tmp_path / "train.tfrecord", examples(4), shards=2) == files
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_write_leaves_nothing(tmp_path):
    kept = tmp_path / "a.tfrecord"
    kept.write_bytes(b"before")
    with raises_problem(key="examples", received=3, reason=r"expected a tf\.train\.Example"):
        write_tfrecords(kept, [*examples(2), 3])
    with raises_problem(key="shards", received=4, reason="but there are 2 examples"):
        write_tfrecords(tmp_path / "b.tfrecord", examples(2), shards=4)
    with raises_problem(key="compression", received="BZ2"):
        write_tfrecords(kept, examples(2), "BZ2")
    assert [file.name for file in tmp_path.iterdir()] == ["a.tfrecord"]
    assert kept.read_bytes() == b"before"
