"""A run of a shipped experiment without an export: the rebuilt model has the accuracy that was logged."""

import csv
import json

import numpy as np
import pytest

from everstep.cli.main import main
from everstep.recipes.mnist_data import load_mnist

pytestmark = [pytest.mark.backend, pytest.mark.daily("torch")]

SHORT = ("task.num_samples=512", "trainer.train_steps=4", "trainer.validation_interval=4", "task.model.units=32")


def test_accuracy_is_the_one_that_was_logged(tmp_path, capsys):
    run, data, output = tmp_path / "run", tmp_path / "in.npz", tmp_path / "out.csv"
    assert main(("train", "mnist/mlp", "--model-dir", str(run), "--no-export", *SHORT)) == 0
    images, labels = load_mnist("test")
    np.savez(data, x=(images / np.float32(255)).astype("float32"), y=labels)
    assert main(("predict", str(run), "--input", str(data), "--output", str(output))) == 0
    with open(output, encoding="utf-8", newline="") as file:
        found = np.array([int(row["prediction"]) for row in csv.DictReader(file)])
    logged = json.loads((run / "run.json").read_text())["metrics"]["validation"]["accuracy"]
    assert np.mean(found == labels) == pytest.approx(logged, abs=1e-6)
    capsys.readouterr()
    assert main(("predict", str(run), "--input", str(data), "--output", str(output))) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "exists already" in printed.err
