"""`everstep.load`: a run as one object."""

import shutil

import keras
import numpy as np
import pytest
from PIL import Image

import everstep
from everstep.cli.main import main
from everstep.testing.problems import raises_problem
from everstep.trained import models

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = np.where(X[:, 0] > 0, "right", "left")


def classifier():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of three epochs, its model, and its History."""
    root = tmp_path_factory.mktemp("load")
    model = classifier()
    directory = root / "runs" / "sides"
    history = everstep.fit(model, X, Y, epochs=3, validation_split=0.25, model_dir=directory, verbose=0)
    return directory, model, history.history


def test_a_run_as_one_object(trained, monkeypatch):
    directory, model, history = trained
    monkeypatch.chdir(directory.parents[1])
    run = everstep.load("sides")
    assert run.path.resolve() == directory.resolve()
    assert run.classes == ["left", "right"]
    assert run.history == history
    assert run.config["trainer"]["train_steps"] == run.record["step"]
    np.testing.assert_allclose(run.predict(X), model.predict(X, verbose=0), rtol=1e-5)
    assert [sample["label"] for sample in run.samples] == Y[30:].tolist()
    for part in ("sides", "val_loss", "left, right", f"exported weights of step {run.record['step']}: loss"):
        assert part in repr(run)


def test_weights_of_a_step(trained):
    directory, model, _ = trained
    steps = sorted(int(path.name) for path in (directory / "checkpoints").iterdir() if path.name.isdecimal())
    last = everstep.load(directory, weights="last")
    np.testing.assert_allclose(last.predict(X), model.predict(X, verbose=0), rtol=1e-5)
    first = everstep.load(directory, weights=steps[0])
    assert first.weights == str(steps[0])
    assert np.abs(first.predict(X) - last.predict(X)).max() > 1e-3
    with raises_problem(key="weights", received="7777", remedy=f"there are: {', '.join(map(str, steps))}"):
        everstep.load(directory, weights=7777)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [((3.0, 2.0, 1.0), "exported"), ((3.0, 1.0, 2.0), "second")],
    ids=["of the last epoch", "of an earlier epoch"],
)
def test_the_best_by_validation_loss(trained, tmp_path, losses, expected):
    directory = copied(trained[0], tmp_path)
    steps = rewrite_losses(directory, losses)
    found = everstep.load(directory, weights="best").weights
    assert found == (str(steps[1]) if expected == "second" else expected)


def test_best_weights_that_are_gone(trained, tmp_path):
    directory = copied(trained[0], tmp_path)
    steps = rewrite_losses(directory, (3.0, 1.0, 2.0))
    shutil.rmtree(directory / "checkpoints" / str(steps[1]))
    with raises_problem(
        key="weights",
        reason=f"the lowest validation loss, 1, was at step {steps[1]}, whose weights are not kept any more",
        remedy=f"there are: {steps[0]}, {steps[2]}; EarlyStopping",
    ):
        everstep.load(directory, weights="best")


def copied(directory, place):
    return shutil.copytree(directory, place / "copy")


def rewrite_losses(directory, losses):
    """Replaces the validation losses of a history; returns its steps."""
    header, *rows = [line.split(",") for line in (directory / "history.csv").read_text().splitlines()]
    column = header.index("validation_loss")
    for row, loss in zip(rows, losses, strict=True):
        row[column] = str(loss)
    (directory / "history.csv").write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    return [int(row[0]) for row in rows]


def test_what_is_no_run(tmp_path, trained):
    with raises_problem(key="run", reason="does not exist"):
        everstep.load(tmp_path / "nothing")
    with raises_problem(key="run", reason="is a model, not a run"):
        everstep.load(trained[0] / "export" / "model.keras")


def damaged(trained, place, name, content):
    directory = copied(trained[0], place)
    (directory / name).write_bytes(content)
    return directory


@pytest.mark.parametrize(
    "content",
    [b"{", b"", b"\x80", b"[]", b'{"id": "a", "metrics": 3}', b'{"id": "a", "final_weights": 3, "classes": 1}'],
)
def test_a_damaged_record(trained, tmp_path, content):
    directory = damaged(trained, tmp_path, "run.json", content)
    with raises_problem(
        reason="is not valid JSON|is not the record of a run|its run.json is damaged: (metrics|final_w)"
    ):
        everstep.load(directory)


def test_damaged_samples(trained, tmp_path):
    run = everstep.load(damaged(trained, tmp_path, "reports/validation.parquet", b"PAR1"))
    with raises_problem(key="run", reason="cannot be read", remedy="everstep eval"):
        run.samples  # noqa: B018


def test_what_is_no_name():
    for given in (3, None, ["runs/a"]):
        with raises_problem(key="run", reason="expected the directory or the name of a run, not"):
            everstep.load(given)


def test_samples_of_a_run(tmp_path):
    for name, grey in (("dark", 20), ("light", 220)):
        for number in range(12):
            path = tmp_path / "pictures" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), grey + number, np.uint8)).save(path)
    directory = tmp_path / "run"
    task = [f"task.train_data.input_path={tmp_path / 'pictures'}", "task.train_data.size=8", "task.model.stages=1"]
    task += ["task.train_data.validation_split=0.4", "task.train_data.global_batch_size=4", "trainer.epochs=1"]
    words = [*task, "task.train_data.workers=0", "task.validation_data.workers=0", "task.model.filters=2"]
    assert main(["train", "image/folder", *words, "--model-dir", str(directory)]) == 0
    assert main(["eval", str(directory), "--samples", "5"]) == 0
    run = everstep.load(directory)
    assert run.classes == ["dark", "light"]
    assert len(run.samples) == 5
    for sample in run.samples:
        assert sample["id"].partition("/")[0] == sample["label"]
        assert sample["prediction"] in run.classes
    output = tmp_path / "out.csv"
    assert main(["predict", str(directory), "--input", str(tmp_path / "pictures"), "--output", str(output)]) == 0
    assert output.read_text().startswith("id,prediction,label,probability\n")


def test_the_identity_of_an_object_is_no_size_of_a_model():
    """Keras writes it into files of models that share layers: as large as an address in memory."""
    config = {"config": {"units": 3, "layers": [{"rate": 7}]}, "shared_object_id": 139_685_229_199_824}
    assert sorted(models._whole_numbers(config)) == [3, 7]
