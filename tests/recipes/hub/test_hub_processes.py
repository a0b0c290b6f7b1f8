"""Runs on LoRA, texts and images in processes of their own: killed at any instant, and without TensorFlow."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from everstep.testing.hub import TEXT

pytestmark = [pytest.mark.backend, pytest.mark.full, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).with_name("hub_experiment.py")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXT), "utf-8")
    return str(path)


def start(program, preset, texts, directory):
    return run([*program, preset, texts, str(directory)])


def run(arguments):
    env = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    command = [sys.executable, *arguments]
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


def check_kills(command, tmp_path):
    """Compares a run that is killed three times, each at a random instant after a new checkpoint, with a whole one.

    `command` returns the arguments of Python for a directory.
    """
    finish(run(command(tmp_path / "whole")))
    killed, draw = tmp_path / "killed", random.Random(0)
    for _ in range(3):
        known, process = newest(killed), run(command(killed))
        while process.poll() is None and newest(killed) <= known:
            time.sleep(0.01)  # until it has written another checkpoint
        time.sleep(draw.random() * 0.3)
        assert process.poll() is None, process.communicate()[0]  # it must not be done before it is killed
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finish(run(command(killed)))
    assert record(killed)["digest"] == record(tmp_path / "whole")["digest"]
    assert [attempt["reason"] for attempt in record(killed)["attempts"]] == ["killed", "killed", "killed", "done"]


def test_a_killed_lora_run_ends_with_the_same_bits(tiny_preset, texts, tmp_path):
    """On packed texts."""
    preset = tiny_preset("causal_lm", "gpt2")
    check_kills(lambda directory: [str(PROGRAM), preset, texts, str(directory)], tmp_path)


OFTEN = ("trainer.steps_per_loop=5", "trainer.checkpoint_interval=5", "trainer.max_to_keep=2", "--no-export")


def test_a_killed_run_on_packed_texts_ends_with_the_same_bits(texts, tmp_path):
    """The whole model, with dropout, from texts of unequal lengths."""
    overrides = [
        *(f"task.{section}.{value}" for section in ("train_data", "validation_data") for value in _packed(texts)),
        "task.model={layers: 2, heads: 2, width: 32, dropout: 0.1}",
        "trainer.train_steps=150",
        "trainer.validation_interval=50",
    ]
    command = ["-m", "everstep", "train", "text/gpt2_shakespeare", *overrides, *OFTEN]
    check_kills(lambda directory: [*command, "--model-dir", str(directory)], tmp_path)


def _packed(texts):
    return f"input_path={texts}", "packing=true", "global_batch_size=2"


def test_a_killed_run_on_an_image_folder_ends_with_the_same_bits(tmp_path):
    """Augmented by two workers, with a part of the images left out for evaluation."""
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(40):
            pixels = generator.integers(0, 256, (24, 20, 3)).astype("uint8")
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    data = {
        "input_path": str(tmp_path / "photos"),
        "size": 16,
        "global_batch_size": 8,
        "validation_split": 0.2,
        "workers": 2,
        "augmentation": "{flip: horizontal, crop: 0.6, colour: 0.2, operations: 1}",
    }
    overrides = [
        *(f"task.train_data.{name}={value}" for name, value in data.items()),
        "task.model={filters: 4, stages: 2, blocks: 1, dropout: 0.1}",
        "trainer.train_steps=150",
        "trainer.validation_interval=50",
    ]
    command = ["-m", "everstep", "train", "image/folder", *overrides, *OFTEN]
    check_kills(lambda directory: [*command, "--model-dir", str(directory)], tmp_path)


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
