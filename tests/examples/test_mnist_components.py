"""The component project of the examples: images in files, two flavours of data, one evaluation."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from PIL import Image

import everstep.report
from everstep.components import Orchestrator
from everstep.projects.components import orchestrator
from everstep.projects.components.exported_model import model_name
from everstep.projects.components.project import Project
from everstep.projects.project_tracking import Tracking
from everstep.recipes.mnist_data import load_mnist

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "mnist_components"
FLAVOURS = ("tfdata", "generators")
SIZES = {"train": 150, "validation": 45, "test": 37}  # none is a multiple of the batch size
CE = "sparse categorical ce"


def generate(folder: Path, suffix: str, sizes: dict[str, int]) -> str:
    """Writes images with the example's own command; returns what it prints."""
    words = [f"--{name}={size}" for name, size in sizes.items()]
    command = [sys.executable, str(EXAMPLE / "generate_data.py"), str(folder), f"--format={suffix}", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def copy_project(root: Path, **changes) -> Path:
    """Copies the example, without the results of earlier runs in it; `changes` go into both config files."""
    shutil.copytree(EXAMPLE / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for flavour in FLAVOURS:
        add_run(root, flavour, flavour, **changes)
    return root


def add_run(root: Path, name: str, flavour: str, **changes) -> Path:
    """Writes a run with the config file of a flavour; returns its folder."""
    config = yaml.safe_load((EXAMPLE / "runs" / flavour / "config.yaml").read_text())
    config["model_builder"]["n_filters"] = changes.pop("n_filters", config["model_builder"]["n_filters"])
    folder = root / "runs" / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    return folder


def read(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def ids_in(folder: Path) -> list[str]:
    """The names in a labels file, in its order."""
    return [row[1] for row in read(folder / "labels.csv")[1:]]


def values(path: Path) -> np.ndarray:
    return np.array([float(row[1]) for row in read(path)[1:]])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders `jpg` and `png` with the same images."""
    root = tmp_path_factory.mktemp("datasets")
    for suffix in ("jpg", "png"):
        printed = generate(root / suffix, suffix, SIZES)
        assert printed.splitlines() == [f"{root / suffix / k}: {n} images and labels.csv" for k, n in SIZES.items()]
    return root


@pytest.fixture(scope="module")
def untracked():
    """Turns MLflow off, which takes longer than these runs; it is tested with the orchestrator."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orchestrator, "create_tracking", lambda *_: Tracking())
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory, data, untracked):
    """A copy of the example with both runs done, on JPEG files; small ones."""
    root = copy_project(tmp_path_factory.mktemp("project"), epochs=2, n_filters=32)
    for flavour in FLAVOURS:
        Orchestrator(flavour, root, data / "jpg", verbose=False).run()
    return root


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_images_are_those_of_mnist(data, suffix):
    images, labels = load_mnist("test")
    folder, first = data / suffix / "test", SIZES["validation"]
    assert read(folder / "labels.csv")[0] == ["", "image name", "label"]
    assert [int(row[2]) for row in read(folder / "labels.csv")[1:]] == list(labels[first : first + SIZES["test"]])
    assert ids_in(folder) == [f"image_{i}.{suffix}" for i in range(SIZES["test"])]
    written = np.stack([np.asarray(Image.open(folder / name)) for name in ids_in(folder)]).astype(int)
    distance = np.abs(written - images[first : first + SIZES["test"]]).mean()
    assert distance == 0 if suffix == "png" else 0 < distance < 10


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_run_leaves_all_reports(project, data, flavour):
    folder = project / "runs" / flavour
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["step"]) == ("finished", 2 * 19)
    means = json.loads((folder / "reports" / "metrics.json").read_text())
    for split, copy in (("validation", "validation_report.csv"), ("test", "eval_report.csv")):
        table = read(folder / copy)
        assert table[0] == ["", CE]
        assert [row[0] for row in table[1:]] == ids_in(data / "jpg" / split)
        assert means[split]["eval_funcs"][CE] == pytest.approx(values(folder / copy).mean())
        assert means[split]["model.evaluate"]["loss"] == pytest.approx(means[split]["eval_funcs"][CE], rel=1e-4)
    assert means["test"]["model.evaluate"]["sparse_categorical_accuracy"] > 0.3
    assert dict(read(folder / "eval_report_summary.csv"))["count"] == f"{SIZES['test']}.0"
    assert (folder / "exported" / model_name()).exists()


def test_pages_have_pictures(project):
    """What the model sees is a row of numbers, and what the page shows is an image."""
    for names, made in ((["tfdata"], "report.html"), (FLAVOURS, "comparison.html")):
        path = everstep.report.write([str(project / "runs" / name) for name in names])
        assert path == project / "runs" / "tfdata" / "reports" / made
        assert path.read_text().count("data:image/png") >= 24
    for split in ("validation", "test"):
        report = json.loads((project / "runs" / "generators" / "reports" / f"{split}.json").read_text())
        assert report["kind"] == "classification"
        assert all(list(sample["input"]) == ["image"] for sample in report["samples"])


@pytest.fixture(scope="module")
def crossed(project, data, untracked):
    """One exported model, evaluated through both loaders on both kinds of files: a function to their tables."""
    for suffix in ("png", "jpg"):
        for flavour in FLAVOURS:
            folder = add_run(project, f"{flavour}_{suffix}", flavour, epochs=2, n_filters=32)
            shutil.copytree(project / "runs" / "tfdata" / "exported", folder / "exported")
            allowed = ["data_loader_class", "preprocessor_class"]  # one of them trained, on images of one kind
            Orchestrator(folder.name, project, data / suffix, allow_change=allowed, verbose=False).evaluate()
    return lambda suffix, table: [project / "runs" / f"{flavour}_{suffix}" / table for flavour in FLAVOURS]


@pytest.mark.full
@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize(("split", "table"), [("validation", "validation_report.csv"), ("test", "eval_report.csv")])
def test_both_loaders_give_the_same_rows(crossed, data, split, table, suffix):
    one, other = crossed(suffix, table)
    assert [row[0] for row in read(one)] == [row[0] for row in read(other)] == ["", *ids_in(data / suffix / split)]
    np.testing.assert_allclose(values(one), values(other), rtol=0, atol=1e-5)


def test_how_far_jpeg_files_differ(data):
    """By default TensorFlow's decoder rounds differently from Pillow's; the loader requests the exact one."""
    files = [data / "jpg" / "test" / name for name in ids_in(data / "jpg" / "test")]
    with Project(EXAMPLE, "src").active():
        from dataset import DataLoader, DataLoaderTF

        pillow = np.stack([DataLoader._read_image(path) for path in files]).astype(int)
        exact = np.stack([DataLoaderTF._read_image_tf(str(path)).numpy()[..., 0] for path in files])
    fast = np.stack([tf.image.decode_jpeg(path.read_bytes()).numpy()[..., 0] for path in files])
    distance = np.abs(fast - pillow)
    print(f"{(distance > 0).mean():.0%} of the pixels differ, by up to {distance.max()} of 255")
    assert 0 < distance.max() <= 8
    assert np.array_equal(exact, pillow)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_show(data, flavour, tmp_path, capsys):
    """Every notebook cell in one go: the model, a sample of either kind, a batch."""
    with Project(EXAMPLE, "src").active():
        import show

        show.explore(data / "jpg", flavour, tmp_path / "pictures")
        drawn = show.show((np.eye(28, dtype="uint8") * 255, 7, 0.5))
    printed = capsys.readouterr().out
    assert printed.startswith("== the model: (None, 784) to (None, 10)\n== one of 150 training samples\n")
    assert re.findall(r"x: (\(.*?\))", printed)[2:] == ["(8, 784)", "(28, 28)"]
    assert len(re.findall(r"label: \d\n", printed)) == 3
    assert "data id: " in printed.partition("one of 37 test samples")[2]
    assert printed.count("sample weight: ") == 3
    lines = printed.splitlines()[-14:]
    assert [line.index("==") for line in lines] == list(range(0, 28, 2)), "the diagonal, as characters"
    assert drawn.size == (28, 28)
    shapes = {path.name: np.asarray(Image.open(path)).shape for path in (tmp_path / "pictures").iterdir()}
    assert shapes == {"training.png": (112, 112), "test.png": (112, 112), "batch.png": (112, 8 * 112)}


def test_the_readme_shows_a_sample(data, tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```$", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "mnist").symlink_to(data / "jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with Project(EXAMPLE, "src").active():
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("x: (28, 28) uint8, from 0 to 255\nlabel: ")


def test_only_config_files_are_kept_of_runs():
    """What a run writes into the example's folder is ignored by git; what makes a run is not."""
    names = ["runs/tfdata/config.yaml", "runs/tfdata/run.json", "runs/tfdata/exported/config.yaml", "mlflow.db"]
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", *names], cwd=EXAMPLE, capture_output=True, text=True, timeout=30
    )
    if done.returncode == 128:
        pytest.skip("no git repository")
    assert done.stdout.split() == names[1:]


def everstep_run(root: Path, name: str, data_dir: Path) -> str:
    """Runs `everstep run` as a user would; returns what it prints."""
    words = ["run", name, "--project-root", str(root), "--data-dir", str(data_dir)]
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        [sys.executable, "-m", "everstep", *words],
        env={**environment, "KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MANY = {"train": 10_000, "validation": 2000, "test": 7999}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    generate(folder, "jpg", MANY)
    return folder


@pytest.mark.full
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_accuracy(tmp_path, many, flavour):
    """As a user runs it, MLflow included: 95 % after a few epochs, with both flavours."""
    root = copy_project(tmp_path, epochs=6, batch_size=32)
    everstep_run(root, flavour, many)
    means = json.loads((root / "runs" / flavour / "reports" / "metrics.json").read_text())
    accuracy = means["test"]["model.evaluate"]["sparse_categorical_accuracy"]
    print(f"{flavour} on {keras.backend.backend()}: accuracy {accuracy:.4f} on {MANY['test']} test images")
    assert accuracy >= 0.95
    assert [row[0] for row in read(root / "runs" / flavour / "eval_report.csv")[1:]] == ids_in(many / "test")
    assert (root / "mlflow.db").is_file()
