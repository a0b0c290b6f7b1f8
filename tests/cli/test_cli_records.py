"""`everstep records`: datasets written from arrays and images, and looked into."""

import json

import numpy as np
import pytest
from PIL import Image

from everstep.cli.commands import load
from everstep.data.formats.tfrecord import frames
from everstep.data.tfrecord import TfExampleBuilder, write_tfrecords
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytest.importorskip("tensorflow")


def records(*words):
    """Runs the command; returns the exit code."""
    return load("records").main(args=[str(word) for word in words], prog_name="everstep records", standalone_mode=False)


@pytest.fixture
def npz(tmp_path):
    random = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    images = random.integers(0, 256, (12, 6, 5, 3), np.uint8)
    np.savez(path, image=images, label=np.arange(12) % 11, version=np.full(12, 1.5, "f"), box=np.zeros((12, 4), "i8"))
    return path


@pytest.fixture
def photos(tmp_path):
    """Images in two folders, and their table."""
    lines = ["file,label,dataset_id,split"]
    for number, kind in enumerate(["png", "jpeg", "png", "jpeg"]):
        path = tmp_path / "photos" / kind / f"{number}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 7), (number * 60, 0, 0)).save(path)
        lines.append(
            f"{kind}/{path.name},{'cat' if number < 2 else 'dog'},{number},{'valid' if number == 3 else 'train'}"
        )
    (tmp_path / "photos.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "photos"


def test_from_arrays(npz, tmp_path, capsys):
    folder = tmp_path / "set"
    records("write", folder, "--arrays", npz, "--shards", 3, "--no-shuffle")
    assert "12 records in 3 files, 11 classes in labels.txt" in capsys.readouterr().out
    assert (folder / "labels.txt").read_text().split() == [str(label) for label in range(11)]  # 10 comes after 9
    assert sorted(p.name for p in folder.glob("*.tfrec")) == [f"train-0000{n}-of-00003.tfrec" for n in range(3)]
    assert not records("inspect", folder, "--json", "--examples", 1)
    found = json.loads(capsys.readouterr().out)
    assert [file["records"] for file in found["files"]] == [4, 4, 4]
    kinds = {name: (feature["type"], feature["shape"]) for name, feature in found["features"].items()}
    assert kinds == {
        "box": ("int64", [4, 4]),
        "image": ("bytes", [1, 1]),
        "label": ("bytes", [1, 1]),
        "version": ("float", [1, 1]),
    }
    assert found["features"]["image"]["images"] == ["PNG"]
    assert found["examples"][0]["label"] == "'0'"
    assert found["differences"] == []


def test_the_order(npz, tmp_path, capsys):
    """Drawn by a seed, the same each time."""

    def labels(name, *words):
        records("write", tmp_path / name, "--arrays", npz, *words)
        capsys.readouterr()
        records("inspect", tmp_path / name, "--json", "--examples", 12)
        return [example["label"] for example in json.loads(capsys.readouterr().out)["examples"]]

    drawn = labels("a")
    assert drawn == labels("b", "--seed", 0) != labels("c", "--seed", 1)
    assert sorted(drawn) == sorted(kept := labels("d", "--no-shuffle"))
    assert drawn != kept == [f"'{row % 11}'" for row in range(12)]
    with raises_problem(key="seed", received=-1):
        labels("e", "--seed", -1)


def test_inspect_says_what_differs(tmp_path, capsys):
    """Features of several types, of several lengths, and those that some records lack."""
    rows = [TfExampleBuilder().add_ints_feature("age", 3).add_floats_feature("box", [1, 2]) for _ in range(3)]
    rows.append(TfExampleBuilder().add_bytes_feature("age", "three").add_floats_feature("box", [1, 2, 3]))
    rows.append(TfExampleBuilder().add_ints_feature("age", 4))
    (path,) = write_tfrecords(tmp_path / "train-0.tfrec", rows)
    assert not records("inspect", path)
    shown = capsys.readouterr().out.splitlines()
    start = shown.index("not the same in all records")
    assert shown[start + 1 : start + 4] == [
        "'age' has several types, and a reader takes one: int64 in 4, first in record 0 of "
        f"{path!r}; bytes in 1, first in record 3 of {path!r}",
        "'box' has 2 to 3 values: FixedLenFeature does not read it",
        "'box' is missing in 1 of 5: FixedLenFeature needs a default_value",
    ]
    records("inspect", path, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["features"]["age"]["types"] == {"int64": 4, "bytes": 1}
    assert len(found["differences"]) == 3


def test_from_images(photos, tmp_path, capsys):
    """Files go in as they are; the column split says which rows; the labels are those of the first writing."""
    folder = tmp_path / "set"
    for split in ("train", "valid"):
        records("write", folder, "--images", photos, "--labels", f"{photos}.csv", "--split", split)
    assert (folder / "labels.txt").read_text() == "cat\ndog\n"
    capsys.readouterr()
    records("inspect", folder)
    shown = capsys.readouterr().out
    assert "train-00000-of-00001.tfrec  3 records" in shown
    assert "JPEG, PNG images" in shown
    assert (photos / "png" / "0.png").read_bytes() in (folder / "train-00000-of-00001.tfrec").read_bytes()


def test_inspect_damage(npz, tmp_path, capsys):
    folder = tmp_path / "set"
    records("write", folder, "--arrays", npz)
    path = folder / "train-00000-of-00001.tfrec"
    data, bad = bytearray(path.read_bytes()), frames(path)[4]
    data[bad.data + 3] ^= 1
    path.write_bytes(data[:-2])
    assert records("inspect", folder) == 1
    shown = capsys.readouterr().out
    assert f"{str(path)!r} at byte {bad.data}, record 4: its data is damaged" in shown
    assert "record 11: the file ends inside a record" in shown
    assert "10 records" in shown


def test_bad_input(npz, photos, tmp_path):
    """Each in one line; no record file is left behind."""
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "uneven.npz", a=np.zeros(3), b=np.zeros(4))
    np.savez(tmp_path / "strange.npz", a=np.zeros(3, "complex64"))
    (tmp_path / "bare.csv").write_text("name,label\na,b\n")
    (tmp_path / "gone.csv").write_text("file,label\ngone.png,cat\n")
    (tmp_path / "text.csv").write_text("file,label\n../photos.csv,cat\n")
    (tmp_path / "short.csv").write_text("file,label\n0.png\n")
    (tmp_path / "notes.tfrec").write_text("hello, this is no record file at all")
    (tmp_path / "labelled").mkdir()
    (tmp_path / "labelled" / "labels.txt").write_text("cat\n")
    images = ["--images", photos, "--labels"]
    cases = {
        "one source is needed": ["set"],
        "cannot be read as an .npz file": ["set", "--arrays", tmp_path / "none.npz"],
        "is a single array": ["set", "--arrays", tmp_path / "one.npy"],
        "not a: 3, b: 4": ["set", "--arrays", tmp_path / "uneven.npz"],
        "has the type complex64": ["set", "--arrays", tmp_path / "strange.npz"],
        "split: received 'test'": ["set", "--arrays", npz, "--split", "test"],
        "shards: received 13, but there are 12 examples": ["set", "--arrays", npz, "--shards", 13],
        "has no column 'file'": ["set", *images, tmp_path / "bare.csv"],
        "gone.csv, line 2": ["set", *images, tmp_path / "gone.csv"],
        "is not a JPEG, PNG, GIF or BMP image": ["set", *images, tmp_path / "text.csv"],
        "has 1 values, but the first line names 2 columns": ["set", *images, tmp_path / "short.csv"],
        "label: received 'dog', is not in": ["labelled", *images, tmp_path / "photos.csv"],
    }
    for words, (folder, *rest) in cases.items():
        with pytest.raises(UsageError) as refused:
            records("write", tmp_path / folder, *rest)
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("*/*.tfrec*"))
    with raises_problem(key="PATH", received=str(tmp_path / "nowhere"), reason="there is no such file or folder"):
        records("inspect", tmp_path / "nowhere")
    assert records("inspect", tmp_path / "notes.tfrec") == 1


def test_help(capsys):
    for words in (["--help"], ["write", "--help"], ["inspect", "--help"]):
        records(*words)
        assert "Example: everstep records" in capsys.readouterr().out
