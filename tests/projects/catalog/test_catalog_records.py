"""TFRecord files in a catalog: folders of them, features by name, and records that make no array."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from everstep.data.tfrecord import TfExampleBuilder, write_tfrecords
from everstep.testing.problems import raises_problem


def ragged(path) -> None:
    builders = [TfExampleBuilder().add_ints_feature("id", i).add_floats_feature("x", [0.5] * (i + 1)) for i in range(3)]
    write_tfrecords(path, builders)


def test_a_folder_of_files_is_one_table(project):
    catalog = project.catalog("a: data/train-0.tfrec\nb: data/train-1.tfrec\nall: {type: tfrecord, filepath: data}\n")
    catalog.save("b", {"id": np.array([3, 4]), "flag": np.array([True, False])})
    catalog.save("a", {"id": np.array([1, 2]), "flag": np.array([False, True])})
    (project.root / "data" / ".everstep-train-2.tfrec").write_bytes(b"a draft")
    (project.root / "data" / "notes.txt").write_text("not of it")
    got = catalog.load("all")
    assert got["id"].tolist() == [1, 2, 3, 4]
    assert got["flag"].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "key", "reason"),
    [
        ("{}", "a", "the feature 'x' has between 1 and 3 values"),
        ("{features: [idd]}", "a.load_args.features", "a record has no 'idd'"),
        ("{features: [id], shapes: {id: [2]}}", "a.load_args.shapes", r"'id' has \(1,\) values per record"),
        ("{compression: LZ4}", "a.compression", "TFRecord files have one of"),
        ("{compression: GZIP}", "a", ""),
    ],
)
def test_records_that_make_no_array(project, arguments, key, reason):
    ragged(project.root / "a.tfrecord")
    catalog = project.catalog(f"a: {{filepath: a.tfrecord, load_args: {arguments}}}\n")
    with raises_problem(key=key, reason=f"^a.tfrecord cannot be read as tfrecord: .*{reason}") as caught:
        catalog.load("a")
    assert "\n" not in str(caught.value)


def test_features_by_name(project):
    ragged(project.root / "a.tfrecord")
    got = project.catalog("a: {filepath: a.tfrecord, load_args: {features: [id]}}\n").load("a")
    assert {name: column.tolist() for name, column in got.items()} == {"id": [0, 1, 2]}


def test_a_damaged_file(project):
    ragged(project.root / "a.tfrecord")
    data = bytearray((project.root / "a.tfrecord").read_bytes())
    data[len(data) // 2] ^= 1
    (project.root / "a.tfrecord").write_bytes(data)
    with raises_problem(key="a", reason=r"a\.tfrecord cannot be read as tfrecord: .*corrupted record"):
        project.catalog("a: a.tfrecord\n").load("a")


@pytest.mark.parametrize(
    ("value", "key", "reason"),
    [
        ({}, "a", "expected arrays by name"),
        ({"a": np.arange(3), "b": np.arange(2)}, "a", "arrays must have the same length along their first axis"),
        ({"a": np.array(3)}, "a.a", "must be an array of numbers or text"),
        ({"a": np.zeros(2, "datetime64[s]")}, "a.a", "must be an array of numbers or text"),
        ({"a": np.array([2**64 - 1], np.uint64)}, "a.a", "cannot hold"),
        ({"a": np.arange(0)}, "a.shards", "an empty record file could not be read"),
    ],
)
def test_values_that_records_do_not_hold(project, value, key, reason):
    catalog = project.catalog("a: a.tfrecord\n")
    with raises_problem(key=key, reason=f"^a.tfrecord cannot be written as tfrecord: .*{reason}"):
        catalog.save("a", value)
    assert [path.name for path in project.root.iterdir()] == ["config"]
