"""Folders of images and TFRecord files as inputs of image models."""

import numpy as np
import pytest
from PIL import Image

from everstep.data.tfrecord import TfExampleBuilder, write_tfrecords
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem
from everstep.trained.inputs import ImageFolder, RecordFiles, Spec

RGB = Spec("image", (6, 4, 3), "float32")


def pictures(folder, count=3, size=(4, 6)):
    """Writes images whose pixels all hold the image's number; one is in a subfolder."""
    for number in range(count):
        path = folder / ("deep" if number == 1 else "") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((size[1], size[0], 3), number, "uint8")).save(path)
    return folder


def test_images_come_in_order_with_their_paths(tmp_path):
    batches = list(ImageFolder(pictures(tmp_path), [RGB]).batches(2))
    assert [name for ids, _ in batches for name in ids] == ["0.png", "2.png", "deep/1.png"]
    values = np.concatenate([arrays[0] for _, arrays in batches])
    assert values.shape == (3, 6, 4, 3)
    assert values.dtype == np.float32
    assert values[:, 0, 0, 0].tolist() == [0, 2, 1]


def test_images_of_another_size_are_refused_or_resized(tmp_path):
    pictures(tmp_path, size=(8, 8))
    with raises_problem(key="--input", reason=r"is 8x8, but the model takes float32\[6, 4, 3\]", remedy="--resize"):
        ImageFolder(tmp_path, [RGB])
    _, arrays = next(ImageFolder(tmp_path, [RGB], resize=True).batches(9))
    assert arrays[0].shape == (3, 6, 4, 3)


def test_greyscale_images(tmp_path):
    for spec, shape in ((Spec("x", (6, 4, 1), "float32"), (3, 6, 4, 1)), (Spec("x", (6, 4), "uint8"), (3, 6, 4))):
        _, arrays = next(ImageFolder(pictures(tmp_path), [spec]).batches(9))
        assert arrays[0].shape == shape


def test_folders_that_do_not_fit(tmp_path):
    with raises_problem(key="--input", reason="contains no images"):
        ImageFolder(tmp_path, [RGB])
    with raises_problem(key="--input", reason=r"the model takes x float32\[4\]"):
        ImageFolder(pictures(tmp_path), [Spec("x", (4,), "float32")])
    (tmp_path / "0.png").write_bytes(b"no image")
    with raises_problem(key="--input", reason="is not an image"):
        ImageFolder(tmp_path, [RGB])


def test_records_of_numbers(tmp_path):
    x = np.arange(12, dtype="float32").reshape(6, 2)
    examples = [
        TfExampleBuilder().add_floats_feature("x", row).add_bytes_feature("id", f"n{i}") for i, row in enumerate(x)
    ]
    path = write_tfrecords(tmp_path / "in.tfrecord", examples)[0]
    batches = list(RecordFiles(tmp_path / "in.tfrecord", [Spec("anything", (2,), "float32")]).batches(4))
    np.testing.assert_array_equal(np.concatenate([arrays[0] for _, arrays in batches]), x)
    assert [name for ids, _ in batches for name in ids] == [f"n{i}" for i in range(6)]
    assert str(path).endswith("in.tfrecord")
    with raises_problem(key="--input", reason=r"has 2 values of float32, but the model's input 'x' takes float32\[3\]"):
        RecordFiles(tmp_path / "in.tfrecord", [Spec("x", (3,), "float32")])
    with raises_problem(key="--input", reason=r"takes int32\[2\]"):
        RecordFiles(tmp_path / "in.tfrecord", [Spec("x", (2,), "int32")])


def test_records_of_images(tmp_path):
    folder = pictures(tmp_path)
    data = [(folder / "0.png").read_bytes(), (folder / "2.png").read_bytes()]
    write_tfrecords(tmp_path / "in.tfrecord", [TfExampleBuilder().add_bytes_feature("image", each) for each in data])
    ids, arrays = next(RecordFiles(tmp_path / "in.tfrecord", [RGB]).batches(9))
    assert (list(ids), arrays[0].shape) == ([0, 1], (2, 6, 4, 3))
    assert arrays[0][:, 0, 0, 0].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda: TfExampleBuilder().add_floats_feature("x", [1]), "Number of float values != expected"),
        (lambda: TfExampleBuilder().add_ints_feature("x", [1, 2]), "Data types don't match"),
        (lambda: TfExampleBuilder().add_floats_feature("y", [1, 2]), "is required but could not be found"),
    ],
)
def test_records_that_differ_from_the_first(tmp_path, other, reason):
    path = tmp_path / "in.tfrecord"
    whole = TfExampleBuilder().add_floats_feature("x", [1, 2])
    write_tfrecords(path, [whole, whole, whole, other()])
    with pytest.raises(UsageError) as caught:
        list(RecordFiles(path, [Spec("x", (2,), "float32")]).batches(2))
    assert (caught.value.key, caught.value.received) == ("--input", str(path))
    assert caught.value.reason.startswith("between records 2 and 3: ")
    assert reason in caught.value.reason


def test_records_that_are_damaged(tmp_path):
    path = tmp_path / "in.tfrecord"
    write_tfrecords(path, [TfExampleBuilder().add_floats_feature("x", [1, 2]) for _ in range(3)])
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    with raises_problem(key="--input", reason="is damaged, .* after 2 good records") as caught:
        list(RecordFiles(path, [Spec("x", (2,), "float32")]).batches(1))
    assert (caught.value.key, caught.value.received) == ("--input", str(path))


def test_records_that_are_no_examples(tmp_path):
    path = tmp_path / "in.tfrecord"
    write_tfrecords(path, [b"\xff\xff\xff"])
    with raises_problem(key="--input", reason=r"record 0 is not a tf.train.Example \(3 bytes\)"):
        RecordFiles(path, [Spec("x", (2,), "float32")])
