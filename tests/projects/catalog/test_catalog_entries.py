"""What a catalog may say: short and long forms, groups, layers, references; and every mistake with its line."""

import pytest

from everstep.catalog import Catalog
from everstep.config import Layer
from everstep.errors import UsageError
from everstep.projects.catalog import entries
from everstep.testing.problems import raises_problem


def refusal(project, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        project.catalog(text)
    return str(caught.value)


def test_forms_of_a_name(project):
    catalog = project.catalog("""\
        mnist:
          raw: data/raw/mnist.npz
          scores: {type: csv, filepath: data/scores.txt, versioned: true, load_args: {sep: ";"}}
        mnist.labels: data/labels.json
        output.model: data/model
        packed: data/mnist.pkl.gz
        """)
    found = {name: (catalog.entry(name).type, catalog.entry(name).filepath) for name in catalog}
    assert found == {
        "mnist.raw": ("npz", "data/raw/mnist.npz"),
        "mnist.scores": ("csv", "data/scores.txt"),
        "mnist.labels": ("json", "data/labels.json"),
        "output.model": ("path", "data/model"),
        "packed": ("pickle", "data/mnist.pkl.gz"),
    }
    assert catalog.as_dict()["mnist.scores"] == {
        "type": "csv",
        "filepath": "data/scores.txt",
        "load_args": {"sep": ";"},
        "versioned": True,
    }
    assert "mnist.raw" in catalog
    assert len(catalog) == 5


def test_a_tree_may_have_short_forms_too(project):
    layers = [Layer("here", {"mnist": {"raw": "a.npz"}})]
    found = entries.parse(entries.merge(layers), layers)
    assert found["mnist.raw"] == entries.Entry("mnist.raw", "a.npz", "npz", origin="here")


def test_local_file_changes_keys_and_paths(project):
    catalog = project.catalog(
        "a: {type: csv, filepath: a.txt, load_args: {sep: ';'}}\nb: b.npz\nc: c.npz\n",
        local="a: /fast/a.txt\nb: {versioned: true}\n",
    )
    assert (catalog.entry("a").filepath, catalog.entry("a").type) == ("/fast/a.txt", "csv")
    assert catalog.entry("a").load_args == {"sep": ";"}
    assert (catalog.entry("b").filepath, catalog.entry("b").versioned) == ("b.npz", True)
    assert catalog.entry("a").origin == f"{project.root}/config/local.yaml:1"
    assert catalog.entry("c").origin == f"{project.file}:3"


def test_references_are_answered_after_all_layers(project, monkeypatch):
    monkeypatch.setenv("PLACE", "elsewhere")
    catalog = project.catalog(
        "_base: data\nraw: ${_base}/x.npz\nsame: {type: npz, filepath: '${raw}'}\nfar: ${oc.env:PLACE}/y.npy\n",
        local="_base: /fast\n",
    )
    assert catalog.entry("raw").filepath == "/fast/x.npz"
    assert catalog.entry("same").filepath == "/fast/x.npz"
    assert catalog.entry("far").filepath == "elsewhere/y.npy"
    assert "_base" not in catalog


@pytest.mark.parametrize(
    ("text", "key", "remedy", "line"),
    [
        ("a:\n  type: csv\n  filpath: a.csv\n", "a.filpath", "did you mean 'filepath'?", 3),
        ("a:\n  file_path: a.csv\n", "a.file_path", "did you mean 'filepath'?", 2),
        ("x: 1.npy\na:\n  filepath: a.csv\n  load_arg: {}\n", "a.load_arg", "did you mean 'load_args'", 4),
        ("a: {type: cvs, filepath: a}\n", "a.type", "did you mean 'csv'?", 1),
        ("a: {type: pandas.CSVDataset, filepath: a.csv}\n", "a.type", "use 'csv'", 1),
        ("a: data.cvs\n", "a.type", "did you mean '.csv'", 1),
        ("a: 3\n", "a", "", 1),
        ("a: {type: npz}\n", "a.filepath", "", 1),
        ("a: {filepath: ''}\n", "a.filepath", "", 1),
        ("a: {filepath: a.npz, versioned: maybe}\n", "a.versioned", "", 1),
        ("a: {filepath: a.npz, load_args: [1]}\n", "a.load_args", "", 1),
        ("a:\n  filepath: a.csv\n  load_args:\n    sepp: ';'\n", "a.load_args.sepp", "did you mean 'sep'?", 4),
        ("a: {filepath: a.keras, save_args: {x: 1}}\n", "a.save_args.x", "this type takes none", 1),
        ("a: {filepath: 's3://bucket/a.npz', credentials: me}\n", "a.credentials", "set them in the environment", 1),
        ("a: s3:/bucket/a.npz\n", "a.filepath", "", 1),
        ("a: s4://bucket/a.npz\n", "a.filepath", "", 1),
        ("a: ${nothing}/a.npz\n", "a", "", 1),
        ("a.b: x.npz\na:\n  b: y.npz\n", "a.b", "", 3),
    ],
)
def test_mistakes_are_named_with_key_and_line(project, text, key, remedy, line):
    with pytest.raises(UsageError) as error:
        project.catalog(text)
    assert [problem.key for problem in error.value.problems] == [key]
    assert error.value.remedy.startswith(remedy)
    assert error.value.origin == f"{project.file}:{line}"


def test_a_misspelt_key_is_told_with_its_value_as_it_is_written(project):
    with pytest.raises(UsageError) as error:
        project.catalog("numbers:\n  raw:\n    filpath: a.npz\n")
    assert (error.value.key, error.value.received) == ("numbers.raw.filpath", "a.npz")


def test_a_password_in_a_url_is_not_repeated(project):
    refused = refusal(project, "a: s3://me:hunter2@bucket/a.npz\n")
    assert refused.startswith("a.filepath: received 's3://…', must not contain credentials")
    assert "hunter2" not in refused


def test_all_mistakes_are_told_at_once(project):
    with pytest.raises(UsageError) as caught:
        project.catalog("a: {type: cvs, filepath: a}\nb: 3\nc: c.npz\n")
    assert [problem.key for problem in caught.value.problems] == ["a.type", "b"]


def test_a_file_that_is_not_there(project):
    with raises_problem(key=f"config file {project.root / 'nowhere.yaml'}", reason="does not exist"):
        Catalog.from_files([project.root / "nowhere.yaml"], project.root)


def test_unknown_names(project):
    catalog = project.catalog("mnist: {raw: a.npz}\n")
    for call in (catalog.load, catalog.fingerprint, catalog.exists, catalog.path):
        with raises_problem(key="name", received="mnist.rwa", reason="the catalog has no such name") as error:
            call("mnist.rwa")
        assert (error.value.received, error.value.remedy) == ("mnist.rwa", "did you mean 'mnist.raw'?")


def test_missing_data_is_named_with_its_absolute_path(project, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # paths begin at the project, wherever one stands
    catalog = project.catalog("a: data/a.npz\nb: {filepath: data/b.csv, versioned: true}\nc: data/c.txt\n")
    catalog.save("c", "here")
    with pytest.raises(UsageError) as caught:
        catalog.check(["a", "b", "c", "d"])
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"a: there is no file or folder {project.root}/data/a.npz: ")
    assert lines[0].endswith(f"(from {project.file}:1)")
    assert lines[1].startswith(f"b: there is no file or folder {project.root}/data/b.csv: ")
    assert lines[2].startswith("name: received 'd', the catalog has no such name: known: 'a', 'b', 'c'")
    assert len(lines) == 3
    with raises_problem(key="a", reason=f"there is no file or folder {project.root}/data/a.npz"):
        catalog.load("a")
    with raises_problem(key="b", reason=f"there is no version in {project.root}/data/b.csv"):
        catalog.load("b")
    catalog.check(["c"])
