"""LoRA runs in processes of their own: killed at any instant, and without TensorFlow."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest

from everstep.testing.hub import TEXT

pytestmark = [pytest.mark.backend, pytest.mark.full, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("hub_experiment.py")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXT), "utf-8")
    return str(path)


def start(program, preset, texts, directory):
    env = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    command = [sys.executable, *program, preset, texts, str(directory)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def record(directory):
    return json.loads((directory / "run.json").read_text("utf-8"))


def newest(directory):
    """Returns the step of the newest checkpoint; 0 if there is none."""
    return max((int(path.name) for path in directory.glob("checkpoints/*") if path.name.isdigit()), default=0)


def test_a_killed_lora_run_ends_with_the_same_bits(tiny_preset, texts, tmp_path):
    preset = tiny_preset("causal_lm", "gpt2")
    finish(start([str(PROGRAM)], preset, texts, tmp_path / "whole"))
    kills, draw = 0, random.Random(0)
    while kills < 3:
        process = start([str(PROGRAM)], preset, texts, tmp_path / "killed")
        known = newest(tmp_path / "killed")
        while process.poll() is None and newest(tmp_path / "killed") <= known:
            time.sleep(0.01)  # until it has written another checkpoint
        time.sleep(draw.random() * 0.3)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    assert kills
    finish(start([str(PROGRAM)], preset, texts, tmp_path / "killed"))
    assert record(tmp_path / "killed")["digest"] == record(tmp_path / "whole")["digest"]
    assert len(record(tmp_path / "killed")["attempts"]) == kills + 1


WITHOUT = """
import importlib.machinery, runpy, sys

class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.partition(".")[0] in ("tensorflow", "tensorflow_text")
        return None if missing else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Without
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="needs TensorFlow")
def test_the_bits_are_the_same_without_tensorflow(tiny_preset, texts, tmp_path):
    preset = tiny_preset("causal_lm", "gpt2")
    output = finish(start([str(PROGRAM)], preset, texts, tmp_path / "with"))
    assert output.splitlines()[-1] == "False"  # where it is installed, it is not imported
    finish(start(["-c", WITHOUT, str(PROGRAM)], preset, texts, tmp_path / "without"))
    assert record(tmp_path / "with")["digest"] == record(tmp_path / "without")["digest"]
