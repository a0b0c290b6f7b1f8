"""Types: those of a project, those that it has to allow, and content that is not what it should be."""

import importlib
import json
import sys
import textwrap
import zipfile

import numpy as np
import pytest
from PIL import Image

from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

OWN = """\
    from everstep.catalog import DataType

    class Shout(DataType):
        def load(self, path, *, times: int = 1):
            return path.read_text().upper() * times

        def save(self, value, path):
            if value is None:
                raise KeyError("a mistake of its own")
            path.write_text(value)

    class Other:
        pass
"""


@pytest.fixture
def own(project, monkeypatch):
    """The project with a module of its own, under a name that no other test has."""
    (project.root / "own_types.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(project.root))
    importlib.invalidate_caches()
    yield project
    sys.modules.pop("own_types", None)


def test_a_type_of_the_project(own):
    catalog = own.catalog("a: {type: own_types.Shout, filepath: a.shout, load_args: {times: 2}, versioned: true}\n")
    catalog.save("a", "hello")
    assert catalog.load("a") == "HELLOHELLO"
    catalog.check(["a"])
    assert catalog.fingerprint("a")["bytes"] == 5
    with pytest.raises(KeyError, match="a mistake of its own"):
        catalog.save("a", None)
    assert len(catalog.versions("a")) == 1


def test_arguments_of_a_type_of_the_project(own):
    catalog = own.catalog("a:\n  type: own_types.Shout\n  filepath: a\n  load_args: {tims: 2}\n")
    catalog.save("a", "x")
    with raises_problem(key="a.load_args.tims", reason="unknown argument", remedy=r"did you mean 'times'\?"):
        catalog.load("a")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("own_types.Other", "must be a class that extends everstep.catalog.DataType"),
        ("own_types.Missing", "'own_types.Missing' does not exist"),
        ("os.system", "'os' is neither source of this project"),
        ("subprocess.Popen", "'subprocess' is neither source of this project"),
        ("own_types._private.X", "is private"),
    ],
)
def test_types_that_are_refused(own, kind, reason):
    catalog = own.catalog(f"a: {{type: {kind}, filepath: a}}\n")
    (own.root / "a").write_text("x")
    for call in (lambda: catalog.load("a"), lambda: catalog.check(["a"])):
        with raises_problem(key="a.type") as caught:
            call()
        assert reason in str(caught.value)
        assert str(own.file) in str(caught.value)


def evil(path, mark) -> None:
    """Writes a pickle that makes a file when it is loaded."""
    code = f"import pathlib; pathlib.Path({str(mark)!r}).touch()"
    path.write_bytes(b"cbuiltins\nexec\n(V" + code.encode() + b"\ntR.")


def test_a_pickle_needs_permission(project, tmp_path):
    catalog = project.catalog("a: a.pkl\n")
    evil(project.root / "a.pkl", tmp_path / "ran")
    for call in (lambda: catalog.load("a"), lambda: catalog.save("a", 1), lambda: catalog.check(["a"])):
        with raises_problem(key="a.type", reason="a pickle can run any code", remedy="allow-pickle = true"):
            call()
    project.allow("allow-pickle = false")
    with raises_problem(key="a.type", reason="a pickle can run any code"):
        catalog.load("a")
    assert not (tmp_path / "ran").exists()
    project.allow("allow-pickle = 'yes'")
    with raises_problem(key="a.type[tool.everstep] allow-pickle", received="yes", reason="must be true or false"):
        catalog.load("a")
    project.allow("allow-pickle = true")
    catalog.load("a")
    assert (tmp_path / "ran").exists(), "the pickle of this test does nothing, so it proves nothing"


@pytest.mark.parametrize("name", ["a.npz", "a.npy"])
def test_arrays_of_objects_are_not_unpickled(project, tmp_path, name):
    catalog = project.catalog(f"a: {name}\n")
    path = project.root / name
    header = b"\x93NUMPY\x01\x00" + (70).to_bytes(2, "little")
    header += b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(69) + b"\n"
    evil(tmp_path / "inside", tmp_path / "ran")
    data = header + (tmp_path / "inside").read_bytes()
    if name == "a.npy":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
    with raises_problem(key="a", reason=f"{name} cannot be read as {name[2:]}: .*Python objects, which are not"):
        catalog.load("a")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.parquet", "a.json", "a.yaml", "a.txt", "a.csv.gz"])
def test_content_of_another_kind(project, name):
    catalog = project.catalog(f"a: {name}\n")
    (project.root / name).write_bytes(b"\xff\xfe{ ] not what it should be: [")
    with raises_problem(key="a", reason=f"{name} cannot be read as") as caught:
        catalog.load("a")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "value", "key", "reason"),
    [
        ("a.npz", [1, 2], "a", "expected arrays by name"),
        ("a.npy", [[1], [1, 2]], "a", "is not an array"),
        ("a.csv", 3, "a", "expected a DataFrame"),
        ("a.txt", b"x", "a", "expected text"),
        ("a.json", {"x": float("nan")}, "a", "Out of range float values"),
        ("a.json", {"x": object()}, "a", "JSON cannot represent"),
        ("a.yaml", object(), "a", "YAML cannot represent"),
        (
            "{type: images, filepath: a}",
            {"image": np.zeros((2, 3, 3, 1)), "label": [1, 2]},
            "a.image",
            "must be uint8",
        ),
        (
            "{type: images, filepath: a}",
            {"image": np.zeros((2, 3, 3, 1), "u1"), "label": [1]},
            "a.label",
            "one value for each",
        ),
        (
            "{type: images, filepath: a}",
            {"image": np.zeros((1, 3, 3, 1), "u1"), "label": [1], "file": ["../../out.png"]},
            "a.file",
            "must be a unique name in the folder",
        ),
        ("{type: path, filepath: a}", "/nowhere/at/all", "a", "expected the path of a file or folder"),
    ],
)
def test_values_that_do_not_fit(project, entry, value, key, reason):
    catalog = project.catalog(f"a: {entry}\n")
    with raises_problem(key=key, reason=f"cannot be written as .*{reason}"):
        catalog.save("a", value)
    assert [path.name for path in project.root.iterdir()] == ["config"]


def test_arguments_for_csv(project):
    (project.root / "a.csv").write_bytes("\ufeffmade by hand\nñ;007;1,5;-\nb;008;;x\n".encode())
    arguments = "{sep: ';', skiprows: 1, names: [n, id, v, t], usecols: [v, id, t], decimal: ',', na_values: ['-']"
    catalog = project.catalog(f"a: {{filepath: a.csv, load_args: {arguments}, dtype: {{id: text}}, form: arrow}}}}\n")
    assert catalog.load("a").to_pydict() == {"v": [1.5, None], "id": ["007", "008"], "t": [None, "x"]}


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("{form: panda}", {"key": "a.load_args.form", "received": "panda", "remedy": "did you mean 'pandas'"}),
        ("{dtype: {a: flaot}}", {"key": "a.load_args.dtype", "received": "flaot", "remedy": "did you mean 'float'"}),
        ("{usecols: [z]}", {"key": "a", "reason": "a.csv cannot be read as csv: .*'z'"}),
        ("{dtype: {a: int64}}", {"key": "a", "reason": "a.csv cannot be read as csv: .*conversion error to int64"}),
    ],
)
def test_arguments_for_csv_that_do_not_fit(project, arguments, fields):
    (project.root / "a.csv").write_text("a,b\nx,1\n")
    with raises_problem(**fields):
        project.catalog(f"a: {{filepath: a.csv, load_args: {arguments}}}\n").load("a")


def pictures(project, table: str, **sizes: tuple[int, int]):
    folder = project.root / "cats"
    folder.mkdir(exist_ok=True)
    (folder / "labels.csv").write_text(table)
    for name, size in sizes.items():
        Image.new("RGB", size, (250, 128, 0)).save(folder / f"{name}.png")


def test_images_of_several_sizes(project):
    pictures(project, "file,label\nx.png,007\ny.png,008\n", x=(4, 6), y=(8, 2))
    plain = project.catalog("a: {type: images, filepath: cats}\n")
    with raises_problem(key="a", reason="y.png has 2 x 8 pixels, x.png 6 x 4", remedy=r"set load_args: \{size"):
        plain.load("a")
    arguments = "{size: [3, 5], mode: L, dtype: {label: text}}"
    got = project.catalog(f"a: {{type: images, filepath: cats, load_args: {arguments}}}\n").load("a")
    assert got["image"].shape == (2, 3, 5, 1)
    assert got["label"].tolist() == ["007", "008"]
    paths = project.catalog("a: {type: images, filepath: cats, load_args: {decode: false}}\n").load("a")
    assert paths["file"].tolist() == [f"{project.root}/cats/{name}.png" for name in "xy"]
    assert "image" not in paths


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("file,label\n", "labels.csv has no row"),
        ("name,label\nx.png,1\n", "labels.csv has no column 'file'"),
        ("file,label\nz.png,1\n", "the table names a file that does not exist"),
        ("file,label\n../config/catalog.yaml,1\n", "a file that is not in the folder"),
        ("file,label\n/etc/passwd,1\n", "a file that is not in the folder"),
        ("file,label\nlabels.csv,1\n", "labels.csv is not an image in a known format"),
    ],
)
def test_tables_of_images_that_cannot_be_used(project, table, reason):
    pictures(project, table, x=(2, 2))
    with raises_problem(key="a", reason="cats cannot be read as images") as caught:
        project.catalog("a: {type: images, filepath: cats}\n").load("a")
    assert reason in str(caught.value)


def test_arrays_that_are_named(project):
    entry = "{filepath: a.npz, load_args: {names: [%s]}}"
    catalog = project.catalog(f"a: {entry % 'x'}\nb: {entry % 'z'}\n")
    catalog.save("a", {"x": np.arange(2), "y": np.arange(3)})
    assert list(catalog.load("a")) == ["x"]
    with raises_problem(key="b.load_args.names", reason="it has no array 'z'", remedy="known: 'x', 'y'"):
        catalog.load("b")


@pytest.mark.backend
def test_a_model_with_code_in_it_is_refused(project, tmp_path):
    import keras

    mark = tmp_path / "ran"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    layer = keras.layers.Lambda(eval(f"lambda x: ({code}, x)[1]"), output_shape=(3,))
    model = keras.Sequential([keras.Input((3,)), layer])
    model.save(project.root / "a.keras")
    mark.unlink(missing_ok=True)
    with raises_problem(key="a.model", reason="a.keras cannot be read as keras: .*'Lambda', which runs code"):
        project.catalog("a: a.keras\n").load("a")
    assert not mark.exists()


@pytest.mark.backend
def test_a_model_that_reads_other_files_is_refused(project, tmp_path):
    import keras

    catalog = project.catalog("a: a.keras\n")
    catalog.save("a", keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    (tmp_path / "private.txt").write_text("mine")
    _rewrite(project.root / "a.keras", {"vocabulary": str(tmp_path / "private.txt")})
    with raises_problem(key="a.model", reason="a.keras cannot be read as keras: .*a vocabulary in it would be read"):
        catalog.load("a")


def _rewrite(path, layer: dict) -> None:
    """Puts something into the configuration of a model's last layer."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(files["config.json"])
    config["config"]["layers"][-1]["config"] |= layer
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**files, "config.json": json.dumps(config).encode()}.items():
            archive.writestr(name, data)
