"""The average of checkpoints, compared with NumPy bit by bit."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from everstep.checkpoint.averaging import average, write_average
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.errors import TrainingError
from everstep.run.averaged_checkpoint import as_checkpoint, evaluated_keys
from everstep.run.checkpoint_selection import Chosen
from everstep.task.optim.ema import SLOT
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

STEPS = (100, 200, 300)


def state(step):
    random = np.random.default_rng(step)
    return {
        "model/dense/kernel": random.normal(size=(64, 32)).astype("float32"),
        "model/norm/moving_variance": random.uniform(size=32).astype("float32"),
        "model/half": random.normal(size=7).astype("float16"),
        "model/brain": random.normal(size=7).astype(ml_dtypes.bfloat16),
        "model/wide": random.normal(size=3),
        "model/waves": random.normal(size=3) + 1j * random.normal(size=3),
        "model/none": np.zeros((0, 3), "float32"),
        "model/dropout/seed_generator_state": np.array([step, 7], np.int64),
        "model/flags": np.array([step == 300, False]),
        "model.d_optimizer/dense/kernel/momentum": random.normal(size=4).astype("float32"),
        "task.teacher/kernel": random.normal(size=5).astype("float32"),
        "optimizer/iteration": np.array(step),
        "optimizer/model/dense/kernel/momentum": random.normal(size=(64, 32)).astype("float32"),
        "window.train/loss": np.array(1.5 * step),
    }


def checkpoint_paths(folder, states, meta=None):
    """Writes checkpoints as a run does; returns their paths."""
    checkpointer = OrbaxCheckpointer(folder / "checkpoints", Retention(newest=9))
    for step, each in states.items():
        checkpointer.save(step, each, {"step": step, **(meta or {})})
    checkpointer.close()
    return tuple(folder / "checkpoints" / str(step) for step in states)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return checkpoint_paths(tmp_path_factory.mktemp("run"), {step: state(step) for step in STEPS}, {"stage": 1})


def test_floats_are_averaged_in_float64_and_integers_are_the_newest(paths):
    found, states = average(paths, evaluated_keys), [state(step) for step in STEPS]
    assert set(found) == {key for key in states[0] if key.startswith(("model/", "model.", "task."))}
    for key, array in found.items():
        newest = states[-1][key]
        assert (array.dtype, array.shape) == (newest.dtype, newest.shape), key
        if "seed" in key or "flags" in key:
            expected = newest
        else:
            wide = np.complex128 if newest.dtype.kind == "c" else np.float64
            expected = np.mean([each[key].astype(wide) for each in states], axis=0).astype(newest.dtype)
        assert array.tobytes() == expected.tobytes(), key


def test_small_differences_are_not_lost_to_rounding(tmp_path):
    """Sums of a million and a third in float32 would be inexact."""
    values = [np.float32(1e6 + 1 / 3 * step) for step in range(1, 8)]
    paths = checkpoint_paths(tmp_path, {step: {"model/w": np.array([v])} for step, v in enumerate(values, start=1)})
    exact = np.float32(np.sum(np.array(values, np.float64)) / 7)
    assert average(paths, evaluated_keys)["model/w"][0] == exact


def test_the_average_is_a_checkpoint(paths, tmp_path):
    with as_checkpoint(Chosen(paths)) as path:
        kept = path
        found, meta = OrbaxCheckpointer(path.parent, repair=False).restore(300)
        assert meta == {"step": 300, "stage": 1, "averaged": [100, 200, 300]}
        assert set(found) == set(average(paths, evaluated_keys))
        assert found["model/none"].shape == (0, 3)
    assert not kept.exists()
    with as_checkpoint(Chosen(paths[1:2])) as path:
        assert path == paths[1]
    assert paths[1].exists()


def test_a_run_with_moving_averages_gives_its_averages(tmp_path):
    states = {
        step: {
            "model/w": np.array([0.0]),
            "model/b": np.array([float(step)]),
            f"optimizer/inner/model/w/{SLOT}": np.array([10.0 * step]),
        }
        for step in (1, 2)
    }
    found = average(checkpoint_paths(tmp_path, states), evaluated_keys)
    assert {key: array.tolist() for key, array in found.items()} == {"model/w": [15.0], "model/b": [1.5]}


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"model/w": np.zeros(3)}, "model/w has another shape"),
        ({"model/v": np.zeros(2)}, "model/w is in one of them only"),
        ({"model/w": np.zeros(2), "model/v": np.zeros(2)}, "model/v is in one of them only"),
    ],
)
def test_different_models_are_refused(tmp_path, other, difference):
    paths = checkpoint_paths(tmp_path, {1: {"model/w": np.zeros(2)}, 2: other})
    with raises_problem(key="--checkpoint", received=str(paths[1]), reason=f"cannot be averaged .*{difference}"):
        average(paths, evaluated_keys)


def test_a_damaged_checkpoint_is_named(tmp_path):
    paths = checkpoint_paths(tmp_path, {step: {"model/w": np.arange(5000.0)} for step in (1, 2)})
    largest = max(paths[0].rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-100] ^= 1
    largest.write_bytes(data)
    with pytest.raises(TrainingError) as error:
        write_average(paths, tmp_path / "average", evaluated_keys)
    assert (error.value.key, error.value.received) == ("--checkpoint", str(paths[0]))
    assert error.value.reason.startswith("the checkpoint is damaged: ")
    assert error.value.remedy == "choose other steps"
    assert not (tmp_path / "average").exists()


MEASURED = """
import resource, sys
from pathlib import Path
from everstep.checkpoint.averaging import average
from everstep.run.averaged_checkpoint import evaluated_keys
paths = [Path(sys.argv[1], "checkpoints", str(step)) for step in range(1, 1 + int(sys.argv[2]))]
average(paths, evaluated_keys)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.full
def test_memory_does_not_grow_with_the_number_of_checkpoints(tmp_path):
    """Sixty arrays of two MiB each; memory holds all of them once in float64, and one checkpoint."""
    random = np.random.default_rng(0)
    state = {f"model/{number}": random.normal(size=(512, 1024)).astype("float32") for number in range(60)}
    checkpoint_paths(tmp_path, dict.fromkeys(range(1, 9), state))
    # Freed memory goes back to the system at once, so that the peak is what was in use and not what malloc keeps.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}

    def peak(count):
        command = [sys.executable, "-c", MEASURED, str(tmp_path), count]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)

    peaks = peak("3"), peak("8")
    print(f"peak with 3 checkpoints of 120 MiB: {peaks[0]} MiB, with 8: {peaks[1]} MiB")
    assert peaks[1] < peaks[0] + 60
