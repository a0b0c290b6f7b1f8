"""Folders, tables and record files: what is found in them, how it is split, and what is refused."""

import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.images.image_files import encoded, picture, write_folder

from everstep.data import make_stream
from everstep.data.images import ImageDataConfig, ImageSource, find_classes
from everstep.data.images.sources import is_left_out
from everstep.data.source import makes_batches
from everstep.errors import UsageError

pytestmark = pytest.mark.slow

CLASSES = ["cat", "dog", "emu"]


def config(path, **values):
    return ImageDataConfig({"input_path": str(path), "size": [20, 30], "workers": 0, **values})


def pixels_and_labels(path, classes=(), **values):
    params = config(path, global_batch_size=100, **values)
    stream = make_stream(ImageSource(params, classes), params, training=False, seed=0)
    return next(stream)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("images") / "photos")


@pytest.fixture(scope="module")
def expected(folder):
    return pixels_and_labels(folder)


def rows(folder):
    """Returns path and class of each image, in the folder's order."""
    return [(path, path.parent.name) for path in sorted(folder.rglob("*.png"))]


def write_csv(folder, lines=None, head="path,label"):
    lines = [f"{path.relative_to(folder)},{name}" for path, name in rows(folder)] if lines is None else lines
    (folder / "table.csv").write_text("\n".join([head, *lines, ""]))
    return folder / "table.csv"


def write_parquet(path, folder, row_group_size=4, wrap=lambda data: data, label=lambda name: name):
    columns = {
        "image": [wrap(image.read_bytes()) for image, _ in rows(folder)],
        "label": [label(name) for _, name in rows(folder)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def varint(number):
    found = b""
    while number > 127:
        number, found = number >> 7, found + bytes([number & 127 | 128])
    return found + bytes([number])


def field(number, data):
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def example(features):
    """Returns a serialised `tf.train.Example`, byte by byte: a test must not need TensorFlow."""
    parts = b""
    for name, value in features.items():
        held = field(1, field(1, value)) if isinstance(value, bytes) else field(3, field(1, varint(value)))
        parts += field(1, field(1, name.encode()) + field(2, held))
    return field(1, parts)


def write_tfrecord(path, records):
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    out = io.BytesIO()
    for record in records:
        length = len(record).to_bytes(8, "little")
        out.write(length + masked_crc32c(length).to_bytes(4, "little"))
        out.write(record + masked_crc32c(record).to_bytes(4, "little"))
    path.write_bytes(out.getvalue())
    return path


def test_a_folder_has_a_class_per_subfolder(folder, expected):
    images, labels = expected
    assert images.dtype == np.uint8
    assert labels.dtype == np.int32
    assert find_classes(config(folder)) == CLASSES
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 3
    numbers = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8]
    np.testing.assert_array_equal(images, [picture(number) for number in numbers])


def test_every_kind_of_file_gives_the_same(folder, expected, tmp_path):
    wrapped = {"wrap": lambda data: {"bytes": data, "path": None}, "label": CLASSES.index}
    shutil.copytree(folder, tmp_path / "photos")
    names = [{"image/encoded": path.read_bytes(), "image/class/label": name.encode()} for path, name in rows(folder)]
    numbers = [{"image": path.read_bytes(), "label": CLASSES.index(name)} for path, name in rows(folder)]
    found = [
        pixels_and_labels(write_csv(tmp_path / "photos")),
        pixels_and_labels(write_parquet(tmp_path / "a.parquet", folder)),
        pixels_and_labels(write_parquet(tmp_path / "b.parquet", folder, **wrapped), CLASSES),
        pixels_and_labels(write_tfrecord(tmp_path / "a.tfrecord", map(example, names))),
        pixels_and_labels(write_tfrecord(tmp_path / "b.tfrecord", map(example, numbers)), CLASSES),
    ]
    for images, labels in found:
        np.testing.assert_array_equal(images, expected[0])
        np.testing.assert_array_equal(labels, expected[1])


def test_several_files_are_joined(folder, expected, tmp_path):
    write_parquet(tmp_path / "a.parquet", folder)
    write_parquet(tmp_path / "b.parquet", folder)
    images, labels = pixels_and_labels(f"{tmp_path}/*.parquet")
    np.testing.assert_array_equal(images, np.concatenate([expected[0]] * 2))
    np.testing.assert_array_equal(labels, np.concatenate([expected[1]] * 2))


def test_json_lines_name_files_too(folder, expected, tmp_path):
    lines = [json.dumps({"file": str(path), "class": name}) for path, name in rows(folder)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    np.testing.assert_array_equal(pixels_and_labels(tmp_path / "a.jsonl")[0], expected[0])


def test_tensorflow_writes_the_examples_that_are_read(folder, expected, tmp_path):
    pytest.importorskip("tensorflow")
    from everstep.data import TfExampleBuilder, write_tfrecords

    builders = [
        TfExampleBuilder().add_bytes_feature("image", path.read_bytes()).add_bytes_feature("label", name)
        for path, name in rows(folder)
    ]
    write_tfrecords(tmp_path / "a.tfrecord", builders, shards=2)  # distributed in turn
    images, labels = pixels_and_labels(f"{tmp_path}/*.tfrecord")
    order = [*range(0, 11, 2), *range(1, 11, 2)]
    np.testing.assert_array_equal(images, expected[0][order])
    np.testing.assert_array_equal(labels, expected[1][order])


def test_numbers_as_classes_are_sorted_by_value(folder, tmp_path):
    path = write_parquet(tmp_path / "a.parquet", folder, label={"cat": 2, "dog": 10, "emu": 1}.get)
    assert find_classes(config(path)) == ["1", "2", "10"]
    assert pixels_and_labels(path)[1].tolist() == [1] * 4 + [2] * 4 + [0] * 3


def test_given_classes_decide_the_labels(folder):
    assert pixels_and_labels(folder, ["emu", "dog", "cat", "yak"])[1].tolist() == [2] * 4 + [1] * 4 + [0] * 3


def test_the_split_follows_from_names(folder, tmp_path):
    names = [f"{path.parent.name}/{path.name}" for path, _ in rows(folder)]
    left_out = [is_left_out(name, 0.4) for name in names]
    assert 0 < sum(left_out) < len(names)
    source = ImageSource(config(folder, validation_split=0.4))
    assert source.subset(training=False).numbers.tolist() == np.flatnonzero(left_out).tolist()
    assert source.subset(training=True).numbers.tolist() == np.flatnonzero(np.logical_not(left_out)).tolist()
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    (moved / "cat" / "000.png").unlink()
    again = ImageSource(config(moved, validation_split=0.4)).subset(training=False)
    kept = [names[1:][number] for number in again.numbers]
    assert kept == [name for name, out in zip(names, left_out, strict=True) if out and name != "cat/000.png"]
    table = write_csv(moved, [f"{name},{name[:3]}" for name in names[1:]])
    by_table = ImageSource(config(table, validation_split=0.4)).subset(training=False)
    assert by_table.numbers.tolist() == again.numbers.tolist()


def test_is_left_out_is_fixed_forever():
    found = [is_left_out(f"cat/{number}.jpg", 0.5) for number in range(8)]
    assert found == [True, True, False, True, False, True, False, False]


def test_files_that_are_no_images_are_ignored_and_reported(tmp_path, caplog):
    folder = write_folder(tmp_path / "photos")
    (folder / "cat" / "notes.txt").write_text("cats")
    (folder / "cat" / ".DS_Store").write_text("")
    (folder / "README.md").write_text("")
    assert len(ImageSource(config(folder))) == 11
    assert "1 files are not images" in caplog.text


def listed(path, classes, **values):
    return ImageSource(config(path, **values), classes)


def refused(path, classes=(), read=False, **values):
    attempt = (
        pixels_and_labels if read else lambda path, classes, **values: ImageSource(config(path, **values), classes)
    )
    with pytest.raises(UsageError) as error:
        attempt(path, classes, **values)
    assert len(str(error.value).splitlines()) == 1
    return error.value


def test_bad_folders_are_refused(tmp_path):
    folder = write_folder(tmp_path / "photos")
    assert refused(tmp_path / "nothing").received == str(tmp_path / "nothing")
    assert "no subfolders" in refused(folder / "cat").reason
    assert refused(folder / "cat" / "000.png").reason == "is an image without a class"
    unknown = refused(folder, ["cat", "dog"])
    assert unknown.received == str(folder / "emu")
    assert unknown.reason == "is not a class"
    (folder / "fox").mkdir()
    empty = refused(folder)
    assert empty.received == str(folder / "fox")
    assert "no images" in empty.reason
    (folder / "fox" / "1.png").write_bytes(b"")
    assert refused(folder).received == str(folder / "fox" / "1.png")
    assert refused("").key == "input_path"


PROCESSES = pytest.param({"workers": 1, "worker_kind": "processes"}, marks=pytest.mark.full)


@pytest.mark.parametrize("workers", [{"workers": 0}, {"workers": 2}, PROCESSES], ids=str)
def test_bad_images_are_named(tmp_path, workers):
    folder = write_folder(tmp_path / "photos")
    bad = folder / "dog" / "004.png"
    whole = bad.read_bytes()
    bad.write_bytes(b"text")
    assert refused(folder, read=True, **workers).received == str(bad)
    bad.write_bytes(whole[:-100])
    error = refused(folder, read=True, **workers)
    assert (error.key, error.received) == ("input_path", str(bad))
    assert "is damaged" in error.reason


def test_a_file_that_disappears_is_named(tmp_path):
    folder = write_folder(tmp_path / "photos")
    source = ImageSource(config(folder))
    (folder / "cat" / "000.png").unlink()
    with pytest.raises(UsageError) as error:
        next(make_stream(source, source.config, training=False, seed=0))
    assert error.value.received == str(folder / "cat" / "000.png")


def test_bad_tables_are_refused(tmp_path):
    folder = write_folder(tmp_path / "photos")
    missing = refused(write_csv(folder, ["cat/000.png,cat", "cat/77.png,cat"]))
    assert missing.received == str(folder / "cat" / "77.png")
    assert missing.origin.endswith("table.csv, line 3")
    label = refused(write_csv(folder, ["cat/000.png,cat", "cat/003.png,cta"]), ["cat", "dog"])
    assert (label.received, label.remedy) == ("cta", "did you mean 'cat'?")
    assert label.origin.endswith("line 3")
    assert refused(write_csv(folder, ["cat/000.png,"])).reason == "has no class in the column 'label'"
    assert "a folder" in refused(write_csv(folder, ["cat,cat"])).reason
    assert refused(write_csv(folder, [])).reason == "has no rows"
    column = refused(write_csv(folder), image_column="pth")
    assert (column.key, column.remedy) == ("image_column", "did you mean 'path'?")
    assert refused(write_csv(folder, head="where,what")).key == "image_column"
    (folder / "cat" / "000.png").write_bytes(b"text")
    damaged = refused(write_csv(folder), read=True)
    assert damaged.received == str(folder / "cat" / "000.png")
    assert damaged.origin.endswith("table.csv, line 2")


def test_bad_rows_of_encoded_images_are_named(folder, tmp_path):
    path = write_parquet(tmp_path / "a.parquet", folder, wrap=lambda data: data if len(data) % 2 else b"text")
    error = refused(path, read=True)
    assert error.origin.startswith(f"{path}, row ")
    records = [example({"image": encoded(picture(0)), "label": 0}), example({"image": b"text", "label": 1})]
    path = write_tfrecord(tmp_path / "a.tfrecord", records)
    assert refused(path, ["a", "b"], read=True).origin == f"{path}, record 1"
    assert refused(path, ["a"], read=True).origin == f"{path}, record 1"
    path = write_tfrecord(tmp_path / "a.tfrecord", [records[0], b"\xff\xff\xff"])
    assert "not a tf.train.Example" in refused(path, ["a"], read=True).reason
    path.write_bytes(path.read_bytes()[:-20])
    assert refused(path).received == str(path)
    path.write_bytes(b"\x1f\x8b" + bytes(20))
    assert "is compressed" in refused(path).reason


def test_a_split_without_images_is_refused(tmp_path):
    folder = write_folder(tmp_path / "photos", 3)
    source = ImageSource(config(folder, validation_split=1e-9))
    with pytest.raises(UsageError) as error:
        source.subset(training=False)
    assert error.value.key == "validation_split"


def test_fingerprints_see_names_labels_sizes_and_content(tmp_path):
    folder = write_folder(tmp_path / "photos")

    def seen():
        return ImageSource(config(folder)).samples.fingerprint()["image_digest"]

    found = [seen(), seen()]
    (folder / "cat" / "000.png").rename(folder / "dog" / "000.png")
    found.append(seen())
    data = bytearray((folder / "dog" / "000.png").read_bytes())
    data[-20] ^= 1
    (folder / "dog" / "000.png").write_bytes(data)
    found.append(seen())
    (folder / "dog" / "000.png").unlink()
    found.append(seen())
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_images_are_cut_into_batches_of_the_configured_size(folder):
    assert not makes_batches(ImageSource(config(folder)))
