"""A finished run is repeated by its stored configuration alone, bit for bit."""

import json
from pathlib import Path
from typing import Any

import keras
import pytest

pytestmark = pytest.mark.backend

OWN = """
import dataclasses
import gin, keras, numpy as np
import everstep

@gin.configurable
def scale(by=1.0):
    return by

@dataclasses.dataclass
class OwnConfig(everstep.TaskConfig):
    model: everstep.Config = dataclasses.field(default_factory=lambda: everstep.Config({"units": 3, "old": 1}))
    units: int = 1

@everstep.register_task(OwnConfig)
class OwnTask(everstep.Task):
    def build_model(self):
        hidden = keras.layers.Dense(self.task_config.model.units + getattr(self.task_config.model, "more", 0))
        return keras.Sequential([keras.Input((2,)), hidden, keras.layers.Dropout(0.5), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
        return x, x.sum(axis=1, keepdims=True) * scale()

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean(keras.ops.square(labels - model_outputs))

@everstep.register_experiment("own/line")
def line():
    trainer = {"train_steps": 8, "steps_per_loop": 4, "validation_interval": 4, "checkpoint_interval": 4}
    return everstep.ExperimentConfig(task=OwnConfig(), trainer=everstep.TrainerConfig(trainer))
"""


def record(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "run.json").read_text())


@pytest.mark.full
def test_a_stored_configuration_repeats_its_run(shell: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    words = ["own/line", "--import=own", "--gin_params=scale.by = 3.0", "--seed=7", "--no-export"]
    edits = ["+task.model.more=2", "~task.model.old", "trainer.steps_per_loop=${trainer.validation_interval}"]
    first = shell("train", *words, *edits, "--model-dir=first", f"--backend={keras.backend.backend()}")
    assert first.code == 0, first.err
    again = shell("train", "--config-file=first/config.yaml", "--model-dir=again", "--no-export")
    assert again.code == 0, again.err
    assert record(tmp_path / "again")["digest"] == record(tmp_path / "first")["digest"]
    assert (tmp_path / "again/config.yaml").read_text() == (tmp_path / "first/config.yaml").read_text()
    assert "scale.by = 3.0" in (tmp_path / "again/operative_config.gin").read_text()

    other = shell("train", "--config-file=first/config.yaml", "--model-dir=again", "--gin_params=scale.by = 4.0")
    assert other.code == 2
    assert "gin: " in other.err
    assert "--allow-change gin" in other.err
    assert "scale.by = 3.0" in (tmp_path / "again/config.yaml").read_text()
