"""`everstep new`: a project that works as it is, and nothing is ever overwritten."""

import json
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest

pytestmark = pytest.mark.slow

MARK = re.compile(r"\{\{\w+\}\}|PACKAGE|\.tmpl\b")


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_flow_has_the_whole_tree(everstep, tmp_path):
    done = everstep("new", "my-demo")
    assert done.code == 0
    assert "cd my-demo && pip install -e . && python train.py --task Mnist_B" in done.out
    files = files_below(tmp_path / "my-demo")
    assert {"train.py", "inference.py", "pyproject.toml", ".gitignore", "README.md", "tests/test_flow.py"} <= files
    assert {f"config/{name}.yaml" for name in ("parameters", "catalog", "optimizer")} <= files
    assert {"feature/feature.py", "model/model.py", "util/util.py", "notebook/flow.ipynb"} <= files
    folders = {path.name for path in (tmp_path / "my-demo" / "data").iterdir()}
    assert folders == {"raw", "feature", "intermediate", "model", "report"}
    with np.load(tmp_path / "my-demo" / "data" / "raw" / "mnist.npz") as arrays:
        assert arrays["x_train"].shape == (60000, 28, 28)


@pytest.mark.parametrize("template", ["flow", "components", "task"])
def test_every_file_is_filled_in_and_can_be_read(everstep, tmp_path, template):
    assert everstep("new", "my-demo", "--template", template).code == 0
    for path in (tmp_path / "my-demo").rglob("*"):
        assert not MARK.search(path.name)
        if path.suffix in {".py", ".toml", ".md", ".yaml", ".ipynb"}:
            text = path.read_text("utf-8")
            assert not MARK.search(text), path
            _read(path, text)


def _read(path, text):
    if path.suffix == ".py":
        compile(text, str(path), "exec")
    elif path.suffix == ".toml":
        assert tomllib.loads(text)["project"]["name"] == "my-demo"
    elif path.suffix == ".ipynb":
        assert json.loads(text)["nbformat"] == 4


def test_components_have_a_run(everstep, tmp_path):
    everstep("new", "demo", "--template", "components")
    assert {"runs/baseline/config.yaml", "src/models.py", "data/mnist.npz"} <= files_below(tmp_path / "demo")


def test_only_one_name_is_installed(everstep, tmp_path):
    everstep("new", "my-demo")
    settings = tomllib.loads((tmp_path / "my-demo" / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    assert {name.partition(".")[0] for name in settings["packages"]} == {"my_demo"}


def test_an_empty_folder_is_filled(everstep, tmp_path):
    (tmp_path / "demo").mkdir()
    assert everstep("new", "demo", "--template", "task").code == 0
    assert (tmp_path / "demo" / "src" / "demo" / "task.py").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("new", "full"), "exists and is not empty"),
        (("new", "full/file"), "exists and is not empty"),
        (("new", "demo", "--template", "flwo"), "received 'flwo', there is no such template: did you mean 'flow'"),
        (("new", "1demo"), "expected a name of letters"),
        (("new", "json"), "is the name of an installed package"),
        (("new", "class"), "expected a name of letters"),
        (("new", "everstep"), "is the name of an installed package"),
        (("new", "numpy"), "is the name of an installed package"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(everstep, tmp_path, words, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    done = everstep(*words)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert files_below(tmp_path) == {"full/file"}


@pytest.mark.full
def test_the_program_of_a_new_flow_runs_before_it_is_installed(everstep, tmp_path):
    assert everstep("new", str(tmp_path / "fresh-one")).code == 0
    program = str(tmp_path / "fresh-one" / "train.py")
    for words, message in (
        (("--task", "Nobody"), "task: received 'Nobody', there is no such task"),
        (("--task", "Mnist_A", "-m", "nobody=1,2"), "nobody: unknown key"),
    ):
        done = subprocess.run([sys.executable, program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
