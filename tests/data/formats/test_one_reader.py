"""Everybody who reads a file reads it alike: the same pixels, and the same files are refused."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.data.images.image_files import encoded, picture

import everstep
from everstep.catalog import Catalog
from everstep.data import TfExampleBuilder, write_tfrecords
from everstep.data.images import ImageDataConfig, ImageSource, ImageStream
from everstep.evaluation.display import shown
from everstep.testing.problems import raises_problem
from everstep.trained.inputs import ImageFolder, RecordFiles, Spec, open_input

HEIGHT, WIDTH = 30, 20  # upright
SPEC = [Spec("image", (HEIGHT, WIDTH, 3), "uint8")]


def on_its_side() -> bytes:
    """A photograph as a camera that was held upright writes it: its rows are columns, and EXIF says so."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(picture(3, height=WIDTH, width=HEIGHT), "PNG", exif=exif)


UPRIGHT = np.rot90(picture(3, height=WIDTH, width=HEIGHT), -1)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "x.png").write_bytes(on_its_side())
    (tmp_path / "cat" / "labels.csv").write_text("file,label\nx.png,cat\n")
    return tmp_path


def catalogued(folder):
    config = folder / "catalog.yaml"
    config.write_text("cats: {type: images, filepath: cat}\n")
    return Catalog.from_files([config], folder).load("cats")["image"]


def streamed(folder):
    source = ImageSource(ImageDataConfig({"input_path": str(folder), "size": [HEIGHT, WIDTH], "workers": 0}))
    return next(ImageStream(source, 1).open(0, 0))[0]


def predicted_on(folder):
    _, (images,) = next(ImageFolder(folder / "cat", SPEC).batches(1))
    return images


def predicted_on_records(folder):
    pytest.importorskip("tensorflow")
    data = (folder / "cat" / "x.png").read_bytes()
    write_tfrecords(folder / "in.tfrecord", [TfExampleBuilder().add_bytes_feature("image", data)])
    _, (images,) = next(RecordFiles(folder / "in.tfrecord", SPEC).batches(1))
    return images


def in_a_report(folder):
    """The picture of a sample, from the batch that an evaluation reads."""
    url = shown(streamed(folder)[0])["image"]
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        return np.asarray(image)[None]


IMAGE_READERS = [catalogued, streamed, predicted_on, predicted_on_records, in_a_report]


@pytest.mark.parametrize("read", IMAGE_READERS)
def test_everybody_sees_an_image_upright(folder, read):
    np.testing.assert_array_equal(read(folder), UPRIGHT[None])


@pytest.mark.parametrize("read", IMAGE_READERS)
def test_nobody_decodes_a_small_file_of_too_many_pixels(folder, read, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", HEIGHT * WIDTH - 1)  # Pillow itself only warns below twice as many
    with raises_problem(reason="is too large: .* pixels"):
        read(folder)


@pytest.mark.parametrize("read", IMAGE_READERS)
def test_nobody_starts_a_program_for_an_image(folder, read):
    """Pillow would hand this to Ghostscript."""
    (folder / "cat" / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 30\n%%EndComments\n")
    with raises_problem(reason="is not an image in a known format"):
        read(folder)


def tables(folder):
    table = folder / "table.parquet"
    numbers = pa.table({"a": list(range(1000))})
    pq.write_table(numbers, table, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(table.read_bytes())
    data[2000] ^= 1
    table.write_bytes(data)
    return table


def catalogued_table(path):
    config = path.with_name("catalog.yaml")
    config.write_text(f"a: {path.name}\n")
    return Catalog.from_files([config], path.parent).load("a")


def predicted_on_table(path):
    return list(open_input(str(path), [Spec("a", (), "int64")]).batches(1000))


@pytest.mark.parametrize("read", [catalogued_table, predicted_on_table])
def test_everybody_verifies_the_checksums_of_parquet_files(tmp_path, read):
    with raises_problem(reason="CRC checksum verification failed"):
        read(tables(tmp_path))


OPENERS = r"""(?x) Image\.open\( | np\.load\( | open_memmap\( | format\.read_array\( | \.ParquetFile\( | read_table\(
    | csv\.(read_csv|open_csv)\( | decode_(image|jpeg|png)\( | \.TFRecordDataset\( | Example\.FromString\("""


def test_nobody_else_opens_such_files():
    package = Path(everstep.__file__).parent
    opening = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(OPENERS, path.read_text("utf-8"))
    }
    records = {"data/tfrecord/sources.py", "data/tfrecord/inspection.py"}
    assert {name for name in opening - records if not name.startswith("data/formats/")} == set()
