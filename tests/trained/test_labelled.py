"""Data with labels in files of every kind: which part is the label, and texts as numbers of classes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from everstep.testing.problems import raises_problem
from everstep.trained.inputs import Spec
from everstep.trained.labelled import LabelledData

FOUR = [Spec("x", (4,), "float32")]
SMALL = [Spec("image", (8, 8, 3), "float32")]
VALUES = np.arange(24, dtype="float32").reshape(6, 4)
SIDES = ["b", "a", "b", "a", "a", "b"]


def table(labels, name="label"):
    return {**{f"c{column}": VALUES[:, column].tolist() for column in range(4)}, name: list(labels)}


def write_csv(path, labels, name="label"):
    columns = table(labels, name)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def batches(data, size=4):
    return list(data.batches(size))


def test_arrays_and_their_labels(tmp_path):
    np.savez(tmp_path / "test.npz", x=VALUES, y=np.arange(6))
    found = batches(LabelledData(tmp_path / "test.npz", FOUR, 6))
    assert [len(ids) for ids, _, _ in found] == [4, 2]
    np.testing.assert_array_equal(np.concatenate([labels for _, _, labels in found]), np.arange(6))
    np.testing.assert_array_equal(np.concatenate([arrays[0] for _, arrays, _ in found]), VALUES)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_in_a_column_are_numbers_of_classes(tmp_path, kind):
    path = tmp_path / f"test.{kind}"
    if kind == "csv":
        write_csv(path, SIDES)
    else:
        pq.write_table(pa.table(table(SIDES)), path)
    data = LabelledData(path, FOUR, 2)
    assert data.class_names == ["a", "b"]
    assert data.labels.tolist() == [1, 0, 1, 0, 0, 1]
    assert LabelledData(path, FOUR, 1, classes=["b", "a"]).labels.tolist() == [0, 1, 0, 1, 1, 0]
    ((_, arrays, _),) = batches(data, 6)
    np.testing.assert_array_equal(arrays[0], VALUES)


def test_numbers_to_predict(tmp_path):
    data = LabelledData(write_csv(tmp_path / "test.csv", [0.5, 1, 2, 3, 4, 5], "price"), FOUR, 1, label="price")
    assert data.labels.tolist() == [0.5, 1, 2, 3, 4, 5]
    assert data.class_names == []


def test_folders_of_images_are_classes(tmp_path):
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    data = LabelledData(tmp_path, SMALL, 2)
    assert (data.class_names, data.labels.tolist()) == (["cat", "dog"], [0, 0, 1])
    assert batches(data)[0][0] == ["cat/1.png", "cat/2.png", "dog/1.png"]
    with raises_problem(key="--label", received="x"):
        LabelledData(tmp_path, SMALL, 2, label="x")
    Image.new("RGB", (8, 8)).save(tmp_path / "alone.png")
    with raises_problem(key="--input", reason="the image 'alone.png' is in no folder of a class"):
        LabelledData(tmp_path, SMALL, 2)


def test_which_column_is_the_label_is_asked(tmp_path):
    path = write_csv(tmp_path / "test.csv", SIDES, "side")
    with raises_problem(key="--input", reason="none of its names is one of labels: c0, c1, c2, c3, side"):
        LabelledData(path, FOUR, 2)
    with raises_problem(key="--label", received="sde", remedy="did you mean 'side'?"):
        LabelledData(path, FOUR, 2, label="sde")
    np.savez(tmp_path / "both.npz", x=VALUES, y=np.arange(6), label=np.arange(6))
    with raises_problem(key="--input", reason="several names could be the labels: y, label"):
        LabelledData(tmp_path / "both.npz", FOUR, 2)


def test_what_does_not_fit_is_refused(tmp_path):
    with raises_problem(key="--label", reason="has 2 classes, 'a', 'b', but the model predicts 3"):
        LabelledData(write_csv(tmp_path / "test.csv", SIDES), FOUR, 3)
    with raises_problem(key="--label", reason="a sample is 'b', none of the classes 'a', 'c'"):
        LabelledData(tmp_path / "test.csv", FOUR, 2, classes=["a", "c"])
    write_csv(tmp_path / "gap.csv", ["1", "", "1", "1", "1", "1"])
    with raises_problem(key="--input", reason="has no value in row 1, column 'label'"):
        LabelledData(tmp_path / "gap.csv", FOUR, 2)
    np.savez(tmp_path / "short.npz", x=VALUES, y=np.arange(5))
    with raises_problem(key="--input", reason="has 6 samples and 5 labels"):
        batches(LabelledData(tmp_path / "short.npz", FOUR, 5))
    (tmp_path / "notes.txt").write_text("")
    with raises_problem(key="--input", received=str(tmp_path / "notes.txt")):
        LabelledData(tmp_path / "notes.txt", FOUR, 2)
