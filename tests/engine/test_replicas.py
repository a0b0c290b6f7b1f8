"""Several devices train as one does: logical devices under a TensorFlow strategy, host devices in a JAX mesh."""

import os
import pathlib
import sys

import pytest
from tests.children import forked

pytestmark = pytest.mark.slow

EVERYDAY = ["clipped_together", "an_overflow_on_one_replica_skips_the_step", "arrays_of_different_lengths"]
HEAVIER = [
    "tokens",
    "exported_under_a_strategy",
    "clipped_one_by_one",
    "clipped_in_the_step",
    "a_custom_tape",
    "tape_and_function_in_one_step",
    "replicas_stay_alike",
    "scaled_clipped_and_averaged",
    "accumulated",
    "rates_by_layer",
    "a_step_that_follows_the_rules_of_keras",
    "fewer_samples_than_replicas",
    "a_run",
]


def output(backend, name, *arguments):
    script = pathlib.Path(__file__).with_name(name)
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(script), *arguments]
    result = forked.run(command, backend=backend, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout + result.stderr


@pytest.mark.parametrize("cases", [EVERYDAY, pytest.param(HEAVIER, marks=pytest.mark.full)])
def test_two_replicas_train_as_one_does(cases):
    pytest.importorskip("tensorflow")
    printed = output("tensorflow", "check_replicas.py", *cases)
    assert [line for line in printed.splitlines() if line.startswith("ok ")] == [f"ok {name}" for name in cases], (
        printed
    )


@pytest.mark.parametrize("part", ["warning", pytest.param("training", marks=pytest.mark.full)])
def test_two_devices_of_a_mesh_train_as_one_does(part):
    pytest.importorskip("jax")
    assert f"ok {part}" in output("jax", "check_mesh.py", part)
