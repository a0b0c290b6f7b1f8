"""Images of a catalog in a flow: their classes and files have their names in whatever the run leaves."""

import csv
import textwrap

import numpy as np
import pytest

import everstep as es
from everstep.catalog import Catalog
from everstep.cli.main import main
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.flow import run_flow
from everstep.projects.flow.task import DataSet
from everstep.projects.flow.training import split_data
from everstep.storage import read_json
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TRAIN = """
import keras
from everstep.flow import DataSet, FlowTask


class Pets(FlowTask):
    def fetch_data(self):
        self.pets = self.catalog.load("pets")

    def preprocessing_train(self):
        image, label, file = (self.pets[name] for name in ("image", "label", "file"))
        self.dataset = DataSet(image[:9], label[:9], image[9:], label[9:], test_ids=file[9:])

    def build_model(self):
        return keras.Sequential([keras.Input((4, 4, 3)), keras.layers.Flatten(), keras.layers.Dense(3, "softmax")])
"""
NAMES = ["bird", "cat", "dog"]


@pytest.fixture
def pets(tmp_path, empty_database, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    files = {
        "pyproject.toml": '[project]\nname = "pets-of-a-catalog"\nversion = "0.1"\n',
        "train.py": TRAIN,
        "config/parameters.yaml": "Pets: {epoch: 1, batch_size: 4, loss: sparse_categorical_crossentropy}\n",
        "config/catalog.yaml": "pets: {type: images, filepath: data/pets}\n",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(textwrap.dedent(text))
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    labels = np.array(["dog", "cat", "bird"] * 5)
    images = np.random.default_rng(0).integers(0, 256, (15, 4, 4, 3)).astype("uint8")
    value = {"image": images, "file": np.array([f"{name}{n}.png" for n, name in enumerate(labels)]), "label": labels}
    Catalog.from_files([tmp_path / "config/catalog.yaml"], root=tmp_path).save("pets", value)
    return tmp_path


def test_classes_and_files_have_their_names(pets, tmp_path):
    done = run_flow("Pets", ["Pets.epoch=1"], pets, verbose=False)
    run = es.load(done.directory)
    assert run.classes == NAMES
    assert [sample["id"] for sample in run.samples] == [f"{['dog', 'cat', 'bird'][n % 3]}{n}.png" for n in range(9, 15)]
    assert [sample["label"] for sample in run.samples] == ["dog", "cat", "bird"] * 2
    page = read_json(done.directory / "reports" / "test.json")
    assert page["classes"] == NAMES
    assert {sample["id"] for sample in page["samples"]} <= {sample["id"] for sample in run.samples}
    output = tmp_path / "predictions.csv"
    words = ("--input", str(pets / "data" / "pets"), "--output", str(output), "--probabilities")
    assert main(("predict", str(done.directory), *words)) == 0
    with open(output, encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["id"], row["label"]) == ("bird11.png", NAMES[int(row["prediction"])])
    assert {f"probability_{name}" for name in NAMES} < set(row)


def test_what_does_not_fit_is_refused():
    arrays = np.zeros((4, 2)), np.zeros(4)
    with raises_problem(key="Pets.dataset", reason="test_label has 4 samples, and test_ids 3"):
        split_data(DataSet(*arrays, *arrays, test_ids=["a", "b", "c"]), type("P", (), {"validation_split": 0}), "Pets")


def test_images_in_files_say_where_they_are_split(pets):
    source = ImageSource(ImageDataConfig(input_path=str(pets / "data/pets/labels.csv"), size=4))
    with raises_problem(key="Pets.validation_split", remedy="set it where the images are named"):
        split_data(DataSet(source), type("P", (), {"validation_split": 0.2}), "Pets")
