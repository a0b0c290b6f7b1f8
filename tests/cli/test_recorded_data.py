"""`everstep eval RUN` and `everstep predict RUN` of a run of `everstep.fit`, on the data that its record names."""

import csv
import json

import keras
import numpy as np
import pytest
from PIL import Image

import everstep
from everstep.cli.main import main
from everstep.data import ParquetSource, open_source, source_record
from everstep.data.images import ImageDataConfig, ImageSource

pytestmark = [pytest.mark.backend]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs that were validated on a part of a folder of images, and on rows of a Parquet file."""
    folder = tmp_path_factory.mktemp("recorded")
    random = np.random.default_rng(0)
    for name, grey in (("dark", 20), ("light", 180)):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(grey, grey + 60, (4, 4, 3)).astype("uint8")
            Image.fromarray(pixels).save(folder / "photos" / name / f"{number}.png")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": random.normal(size=20), "b": random.normal(size=20), "y": random.integers(0, 2, 20)}
    parquet.write_table(pytest.importorskip("pyarrow").table(columns), folder / "rows.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = ImageDataConfig(input_path="photos", size=4, validation_split=0.4, workers=0, global_batch_size=8)
        fit(ImageSource(config), (4, 4, 3), "runs/images", "keras")
        rows = ParquetSource("rows.parquet", ["a", "b"], "y")
        fit(rows, (2,), "runs/rows", "keras", validation_data=rows)
        fit(np.zeros((8, 2)), (2,), "runs/arrays", "keras", y=np.zeros(8))
    return folder


def fit(x, shape, place, export, **given):
    layers = [keras.Input(shape), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(2, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    everstep.fit(model, x, epochs=2, model_dir=place, export=export, report=False, verbose=0, **given)


@pytest.mark.parametrize(
    ("run", "data"), [("images", "'photos', the part that training left out"), ("rows", "'rows.p")]
)
def test_an_evaluation_has_the_numbers_of_the_last_one(trained, monkeypatch, capsys, tmp_path, run, data):
    monkeypatch.chdir(tmp_path)  # paths are relative to where the run was trained
    assert main(["eval", str(trained / "runs" / run), "--json"]) == 0
    out, err = capsys.readouterr()
    recorded = json.loads((trained / "runs" / run / "run.json").read_text())["metrics"]["validation"]
    assert json.loads(out) == pytest.approx(
        {name: recorded[name] for name in ("validation_loss", "accuracy")}, rel=1e-5
    )
    assert f"on the validation data of the run, {data}" in err


def test_samples_of_an_evaluation_have_the_names_of_files(trained, capsys):
    run = trained / "runs" / "images"
    assert main(["eval", str(run), "--samples", "3"]) == 0
    assert f"3 samples in {run}/reports/report.html" in capsys.readouterr().err
    rows = everstep.load(run).samples
    assert len(rows) == 3
    assert all((trained / "photos" / row["id"]).is_file() for row in rows)


def test_predictions_without_an_input(trained, tmp_path, capsys):
    output = tmp_path / "answers.csv"
    assert main(["predict", str(trained / "runs" / "images"), "--output", str(output)]) == 0
    assert "on the validation data of the run, 'photos'" in capsys.readouterr().err
    with open(output, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert 0 < len(rows) < 24
    assert all((trained / "photos" / row["id"]).is_file() for row in rows)


def test_data_that_the_record_does_not_name(trained, capsys, monkeypatch):
    monkeypatch.chdir(trained)
    assert main(["predict", "runs/arrays", "--output", "new.csv"]) == 2
    assert "name the data: everstep predict runs/arrays --input new.npz --output answers.csv" in capsys.readouterr().err
    assert main(["eval", "runs/arrays"]) == 2
    assert "everstep eval runs/arrays --data PATH" in capsys.readouterr().err


def test_data_that_is_gone(trained, capsys, monkeypatch):
    monkeypatch.chdir(trained)
    (trained / "photos").rename("moved")
    try:
        for words in (["eval", "runs/images"], ["predict", "runs/images", "--output", "new.csv"]):
            assert main(words) == 2
            error = capsys.readouterr().err.splitlines()[-1]
            assert "what the run was validated on cannot be read: input_path: received " in error
            assert f"{'--data' if words[0] == 'eval' else '--input'}: is not given" in error
    finally:
        (trained / "moved").rename("photos")


def test_what_a_record_says_of_a_source(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(trained)
    source = ImageSource(ImageDataConfig(input_path="photos/", size=[4, 6], channels=1), ["light", "dark"])
    record = json.loads(json.dumps(source_record(source)))
    monkeypatch.chdir(tmp_path)
    again = open_source(record)
    assert again.classes == ["light", "dark"]
    assert again.config.replace(input_path="") == source.config.replace(input_path="")
    assert len(again) == len(source)
    assert source_record(np.zeros(3)) is None
