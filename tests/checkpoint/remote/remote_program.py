"""A small training whose directory may be a URL; as a program it waits after step 4 until a file `go` exists.

`python -m tests.checkpoint.remote.remote_program URL FOLDER`
"""

import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import everstep
from everstep.run.record import read

STEPS = 12


class Line(everstep.Task):
    """Learns a sum, with dropout: seeds, slots and data positions all have to be restored."""

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return keras.ops.mean((labels - model_outputs) ** 2)


def train(model_dir: Any, actions: Any = (), steps: int = STEPS, **trainer: Any) -> None:
    params = everstep.ExperimentConfig()
    config = {"train_steps": steps, "steps_per_loop": 2, "checkpoint_interval": 4, "max_to_keep": 5, **trainer}
    params.override({"trainer": config, "runtime": {"seed": 7}})
    everstep.run_experiment(Line(), params, model_dir, "train", train_actions=actions, export=False, verbose=False)


def waiting_at_four(folder: Path) -> Any:
    """Returns an action that pauses training after the first checkpoint until the file `go` exists."""
    calls = []

    def action(logs: Any) -> None:
        calls.append(logs)
        if len(calls) == 3:
            (folder / "waiting").touch()
            while not (folder / "go").exists():
                time.sleep(0.05)

    return action


def digest(directory: Path) -> str:
    record = read(directory)
    assert record["status"] == "finished"
    assert record["digest"]
    return str(record["digest"])


if __name__ == "__main__":
    train(sys.argv[1], [waiting_at_four(Path(sys.argv[2]))])
