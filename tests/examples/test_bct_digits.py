"""The digits example shows what backward-compatible training is for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import everstep as es
import everstep.recipes.bct.digits
from everstep.bct import OldModel
from everstep.recipes.bct.digits_data import load_digits

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "bct_digits.py"
DIGITS = list("0123456789")


def run(directory: Path, seed: int = 0) -> dict[str, float]:
    """Runs the example as a user would; returns mAP by row, and the gain."""
    words = ["--backend", keras.backend.backend(), "--seed", str(seed), "--model-dir", str(directory)]
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *words], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout, flush=True)
    rows = re.findall(r"^(\S.*?)  +(-?\d\.\d+)  +\d\.\d+$", done.stdout, re.MULTILINE)
    return {name: float(value) for name, value in rows} | {
        "gain": float(re.search(r"^update gain: (\S+)$", done.stdout, re.MULTILINE)[1])
    }


def check(figures: dict[str, float]) -> None:
    old, cross, paragon = figures["old/old"], figures["BCT new/old"], figures["paragon (independent new/new)"]
    assert cross >= old + 0.10
    assert figures["independent new/old"] <= 0.30
    assert figures["BCT new/new"] >= paragon - 0.03
    assert 0.4 < figures["gain"] < 0.9
    assert figures["gain"] == pytest.approx((cross - old) / (paragon - old), abs=0.02)


def check_chain(figures: dict[str, float]) -> None:
    """The third version never saw the first, and yet finds more in its gallery than the first itself does."""
    assert [figures["v1/v1"], figures["v2/v1"]] == [figures["old/old"], figures["BCT new/old"]]
    assert figures["v3/v1"] > figures["v1/v1"]
    assert figures["v3/v2"] > figures["v1/v1"] + 0.10
    assert figures["v3/v2"] > figures["v3/v1"]


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.timeout(2400)
def test_digits_with_three_seeds(tmp_path):
    for seed in range(3):
        figures = run(tmp_path / str(seed), seed)
        check(figures)
        check_chain(figures)


def test_held_out_images_are_training_images():
    """Settings that are chosen on them have seen no test image."""
    test, every = load_digits(False, DIGITS), load_digits(True, DIGITS)
    rest, held = load_digits(True, DIGITS, held_out=300), load_digits(False, DIGITS, held_out=300)
    assert [len(one[1]) for one in (test, every, rest, held)] == [597, 1200, 900, 300]
    for part in (0, 1):
        assert np.array_equal(np.concatenate([rest[part], held[part]]), every[part])


def trained_model(directory: Path, **bct) -> tuple[es.Task, keras.Model]:
    params = es.get_exp_config("bct/digits")
    steps = {"train_steps": 40, "steps_per_loop": 20, "validation_interval": 40, "checkpoint_interval": 40}
    params.override({"task": {"bct": bct}, "trainer": steps, "runtime": {"seed": 1000}})
    task = es.get_task(params.task)
    model, _ = es.run_experiment(task, params, directory, "train", export=False, verbose=False)
    return task, model


def bits(layer: keras.Layer) -> list[bytes]:
    return [np.asarray(keras.ops.convert_to_numpy(one.value)).tobytes() for one in layer.variables]


@pytest.mark.full
@pytest.mark.backend
def test_digits_leave_the_old_classifier_and_without_weight_all_else(tmp_path):
    params = es.get_exp_config("bct/digits_old")
    old, _ = es.run_experiment(es.get_task(params.task), params, tmp_path / "old", "train", export=False, verbose=False)
    file = str(tmp_path / "old.keras")
    old.save(file)
    task, new = trained_model(tmp_path / "new", old_model=file, variant="old_classes")
    assert bits(task.influence.classifier) == bits(old.get_layer("classifier")) == bits(OldModel.load(file).classifier)
    _, alone = trained_model(tmp_path / "alone")
    _, zero = trained_model(tmp_path / "zero", old_model=file, weight=0.0)
    assert bits(zero) == bits(alone)
    assert bits(new) != bits(alone)
