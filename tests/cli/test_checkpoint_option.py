"""`--checkpoint`, of a real run: the numbers are those that the run logged at that step, or NumPy's of the average."""

import csv
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from everstep.checkpoint import arrays
from everstep.cli.main import main
from everstep.recipes.mnist_data import load_mnist

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

VALUES = {
    "trainer.train_steps": 12,
    "trainer.steps_per_loop": 4,
    "trainer.validation_interval": 4,
    "trainer.checkpoint_interval": 4,
    "trainer.best_checkpoint_eval_metric": "validation_loss",
    "trainer.best_checkpoint_metric_comp": "lower",
    "trainer.keep_best": 1,
    "task.validation_data.global_batch_size": 100,
}
COUNT = 200
"""Samples that are validated."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "digits"
    words = ("--model-dir", str(directory), "--backend", keras.backend.backend(), "--no-export")
    assert main(("train", "mnist/local", *words, *(f"{key}={value}" for key, value in VALUES.items()))) == 0
    return directory


def logged(run: Path) -> dict[int, dict[str, str]]:
    with open(run / "history.csv", encoding="utf-8", newline="") as file:
        return {int(row["step"]): row for row in csv.DictReader(file)}


def files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def averaged(run: Path, *steps: int) -> list[np.ndarray]:
    """What NumPy says of the average, in the order of the model's weights."""
    states = [arrays.read(run / "checkpoints" / str(step))[0] for step in steps]
    names = [f"model/{layer}/{weight}" for layer in ("dense", "dense_1") for weight in ("kernel", "bias")]
    return [np.mean([state[name].astype("float64") for state in states], axis=0).astype("float32") for name in names]


def answers(weights: list[np.ndarray], images: np.ndarray) -> np.ndarray:
    hidden = np.maximum(images.reshape(len(images), -1) @ weights[0] + weights[1], 0)
    return hidden @ weights[2] + weights[3]


def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_mnist("test")
    return (images[:COUNT] / np.float32(255)).astype("float32"), labels[:COUNT]


def evaluate(run: Path, wanted: str, capsys: Any) -> dict[str, float]:
    capsys.readouterr()
    assert main(("eval", str(run), "--checkpoint", wanted, "--json")) == 0
    return json.loads(capsys.readouterr().out)


def test_a_step_is_what_was_logged_then_and_the_run_stays_as_it_is(run: Path, capsys: Any) -> None:
    before = files(run)
    for step, wanted in ((4, "4"), (8, "8"), (12, "last"), (12, "best")):
        found, then = evaluate(run, wanted, capsys), logged(run)[step]
        assert found["validation_loss"] == float(then["validation_loss"]), wanted
        assert found["accuracy"] == float(then["validation_accuracy"]), wanted
    assert files(run) == before


def test_an_average_is_evaluated(run: Path, capsys: Any) -> None:
    found = evaluate(run, "4,8,12", capsys)
    images, labels = digits()
    logits = answers(averaged(run, 4, 8, 12), images).astype("float64")
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(COUNT), labels]
    assert found["validation_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(axis=1) == labels).mean())
    assert evaluate(run, "last:3", capsys)["validation_loss"] == found["validation_loss"]


def test_an_average_is_asked(run: Path, tmp_path: Path) -> None:
    images, _ = digits()
    np.savez(tmp_path / "in.npz", x=images)
    words = ("predict", str(run), "--checkpoint", "4,12", "--input", str(tmp_path / "in.npz"))
    assert main((*words, "--output", str(tmp_path / "out.csv"))) == 0
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        predicted = [int(row["prediction"]) for row in csv.DictReader(file)]
    assert predicted == answers(averaged(run, 4, 12), images).argmax(axis=1).tolist()


def test_an_average_is_exported(run: Path, tmp_path: Path, capsys: Any) -> None:
    before = files(run)
    assert main(("export", str(run), "--checkpoint", "8,12", "--out", str(tmp_path / "out"))) == 0
    written = capsys.readouterr().out.split()
    assert str(tmp_path / "out" / "model.keras") in written
    assert all(Path(path).exists() for path in written)
    model = keras.saving.load_model(tmp_path / "out" / "model.keras")
    for found, expected in zip(model.trainable_weights, averaged(run, 8, 12), strict=True):
        assert keras.ops.convert_to_numpy(found).tobytes() == expected.tobytes()
    assert files(run) == before


def test_the_place_of_a_runs_end_is_kept_for_it(run: Path, capsys: Any) -> None:
    before = files(run)
    assert main(("export", str(run), "--checkpoint", "4", "--out", str(run / "export"))) == 2
    assert "that folder is for the end of the run, and step 4 is not its end" in capsys.readouterr().err
    assert files(run) == before


def test_an_export_of_an_export(run: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """The model is there already: neither the experiment nor its data is needed for other weights."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    model.compile("sgd", "mse")
    import everstep

    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    monkeypatch.chdir(tmp_path)
    everstep.fit(model, (x, x[:, :2]), epochs=3, model_dir="runs/small", verbose=False)
    assert main(("export", "runs/small", "--checkpoint", "last:2")) == 0
    assert "runs/small/export-2+3/model.keras" in capsys.readouterr().out
    states = [arrays.read(tmp_path / "runs/small/checkpoints" / step)[0] for step in ("2", "3")]
    loaded = keras.saving.load_model("runs/small/export-2+3/model.keras")
    for name in ("moving_mean", "moving_variance"):
        mean = np.mean([s[f"model/batch_normalization/{name}"].astype("float64") for s in states], axis=0)
        found = keras.ops.convert_to_numpy(getattr(loaded.layers[-1], name))
        assert found.tobytes() == mean.astype("float32").tobytes()


@pytest.mark.parametrize("command", ["eval", "export"])
@pytest.mark.parametrize(
    ("wanted", "message"),
    [("6", "has no step 6: there are: 4, 8, 12"), ("4,4", "a step counts once"), ("newest", "expected a step, best")],
)
def test_bad_checkpoints(run: Path, command: str, wanted: str, message: str, capsys: Any) -> None:
    capsys.readouterr()
    assert main((command, str(run), "--checkpoint", wanted)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_model_alone_has_no_checkpoints(tmp_path: Path, capsys: Any) -> None:
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(tmp_path / "model.keras")
    assert main(("export", str(tmp_path / "model.keras"))) == 2
    assert "an exported model has no checkpoints" in capsys.readouterr().err
