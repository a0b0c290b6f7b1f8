"""A backend is one file: the toy on NumPy passes the contract of an engine."""

import ast
import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest
from tests.engine import toy_backend

from everstep.engine.protocol import Backend
from everstep.testing import engines

pytestmark = pytest.mark.slow

HERE = pathlib.Path(__file__).parent

DOES_NOT_APPLY = {
    "check_inputs_without_labels": "NumPy computes with None, as NaN",
    "check_refuses_python_branches_on_tensors": "NumPy's arrays have values at once, so Python may decide",
    "check_accumulates_by_tokens": "compares gradients more closely than differences of a loss give them",
    "check_builds_late_objects": "learns at a rate for which gradients from differences are too coarse",
    "check_float16_overflow_skips_the_step": "a difference of finite losses does not overflow",
    "check_fixed_scale_stays": "a difference of finite losses does not overflow",
}

SLOW = {
    "check_same_bits_in_another_engine",
    "check_resumes_from_a_state",
    "check_remainders_compile_nothing_new",
    "check_other_shapes_compile_once",
    "check_learns",
    "check_stops_on_request",
    "check_does_not_wait_for_data_after_a_stop",
    "check_survives_a_data_error",
    "check_several_gradients",
    "check_push_and_pull_change_nothing",
    "check_pushed_arrays_are_never_written_to",
    "check_resumes_within_an_accumulation",
    "check_float16_learns",
    "check_bfloat16_learns",
    "check_leaves_training_as_it_was",
    "check_resumes_between_host_and_device",
    "check_stops_and_continues_on_the_device",
    "check_scaled_loss_is_logged_unscaled",
    "check_steps_may_scale_by_themselves",
    "check_scales_in_task_attributes",
}
"""They train many steps, and a gradient here takes two evaluations of the loss for every weight."""

APPLIES = [check.__name__ for check in engines.CHECKS if check.__name__ not in DOES_NOT_APPLY]


@functools.cache
def printed(names):
    """Runs checks in one process with Keras on NumPy; returns what it printed."""
    command = [sys.executable, "-W", "ignore", str(HERE / "check_toy_backend.py"), *names]
    environment = {**os.environ, "KERAS_BACKEND": "numpy", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name in APPLIES if name not in SLOW])
def test_engine(name):
    found = printed(tuple(name for name in APPLIES if name not in SLOW))
    assert f"ok {name}\n" in found, found


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(SLOW))
def test_engine_over_many_steps(name):
    found = printed((name,))
    assert f"ok {name}\n" in found, found


def test_what_is_left_out_is_in_the_contract():
    names = {check.__name__ for check in engines.CHECKS}
    assert names >= SLOW | set(DOES_NOT_APPLY)


def test_it_has_what_every_backend_has_and_nothing_else():
    source = (HERE / "toy_backend.py").read_text("utf-8")
    [toy] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    methods = [node.name for node in toy.body if isinstance(node, ast.FunctionDef)]
    assert methods == ["trace", "compile", "place", "run", "read", "get", "set", "wait"]
    assert set(methods) == Backend.__abstractmethods__
    assert issubclass(toy_backend.ToyBackend, Backend)
    assert len(source.splitlines()) < 200


def test_the_page_shows_the_file():
    page = (HERE.parents[1] / "docs" / "how-to" / "extend-backend.md").read_text("utf-8")
    assert (HERE / "toy_backend.py").read_text("utf-8") in re.findall(r"```python\n(.*?)```\n", page, re.DOTALL)
