"""The contract of an entry point: a way to start training that has arguments, or files, of its own.

    class Learn(entry_points.EntryPoint):
        shorter = {"rounds": EPOCHS - 1}
        refused_on_resume = [Refusal({"rounds": 2}, "rounds"), Refusal({"batch_size": 4}, "batch_size")]
        bad_input = [Refusal({"rounds": 0}, "rounds")]

        def run(self, folder, rounds=EPOCHS, batch_size=BATCH):
            learn(compiled_model(), X, Y, folder / "run", rounds, batch_size, actions=[kill_in_the_last_epoch()])
            return folder / "run"

    if __name__ == "__main__":                   # the process that is killed
        Learn().run(Path(sys.argv[1]))

An entry point trains the model and the data of this file for `EPOCHS` epochs, and saves after each. `CHECKS` take an
entry point and a folder in which it has run once; the other checks take an empty one.
"""

import abc
import csv
import dataclasses
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from everstep.engine import backend
from everstep.errors import UsageError
from everstep.run import read

EPOCHS, BATCH, SEED = 3, 8, 5
STEPS = 5
"""Steps of an epoch."""
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(STEPS * BATCH, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
VALIDATION = X[:16], Y[:16]
LOSS = "sparse_categorical_crossentropy"

KILL = "KILLED_RUN"
"""The variable that names the folder of a run that is to be killed."""


def build_model() -> keras.Model:
    """Returns the model, with something random in each step."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(6, "relu")(inputs))
    return keras.Model(inputs, keras.layers.Dense(2, "softmax")(hidden))


def compiled_model(optimizer: str = "adam", seed: int = SEED) -> keras.Model:
    """Returns the model, compiled, always with the same initial weights."""
    backend.prepare(seed)
    model = build_model()
    model.compile(optimizer, LOSS)
    return model


def kill_if_asked() -> None:
    """Ends this process at once, as a lost machine would, when one checkpoint is there."""
    if folder := os.environ.get(KILL):
        while not list(Path(folder).rglob("checkpoints/*/manifest.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class KillInTheLastEpoch(keras.callbacks.Callback):
    """Where an entry point takes Keras callbacks: the last epoch is trained, and not evaluated yet."""

    def on_test_begin(self, logs: Any = None) -> None:
        if len(self.model.history.epoch) == EPOCHS - 1:
            kill_if_asked()


def kill_in_the_last_epoch() -> Callable[[Mapping[str, Any]], None]:
    """Returns an action for an entry point that takes those: called after each epoch, it kills in the last."""
    epochs = []

    def action(logs: Mapping[str, Any]) -> None:
        epochs.append(logs)
        if len(epochs) == EPOCHS:
            kill_if_asked()

    return action


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Arguments that an entry point refuses.

    Attributes:
      arguments: What `EntryPoint.run` is called with.
      key: The `key` of the first problem: what the user of the entry point calls the argument.
    """

    arguments: Mapping[str, Any]
    key: str


class EntryPoint(abc.ABC):
    """One way to train, as the contract sees it.

    Attributes:
      refused_on_resume: Changes with which a run that exists is not resumed.
      bad_input: Arguments that are refused before anything is written.
      shorter: Arguments with which it trains an epoch less.
    """

    refused_on_resume: Sequence[Refusal] = ()
    bad_input: Sequence[Refusal] = ()
    shorter: Mapping[str, Any]

    @abc.abstractmethod
    def run(self, folder: Path, **changes: Any) -> Path:
        """Trains the model of this file in a folder, or resumes there; returns the run directory."""


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns the content of the run's record and of its checkpoints' manifests, by path."""
    paths = [*folder.rglob("run.json"), *folder.rglob("manifest.json"), *folder.rglob("history.csv")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def check_a_finished_run_is_left_alone(entry: EntryPoint, folder: Path) -> None:
    """The same call again trains nothing: record, curves and checkpoints stay as they are."""
    before = files_of(folder)
    attempts = read(entry.run(folder))["attempts"]
    after = files_of(folder)
    assert after.keys() == before.keys()
    assert [name for name in before if not name.endswith("run.json") and before[name] != after[name]] == []
    assert all(attempt["from_step"] == attempt["to_step"] for attempt in attempts[1:])


def check_tracks_each_epoch_once(entry: EntryPoint, folder: Path) -> None:
    """The curves have the losses of training and of validation at the end of each epoch."""
    with open(entry.run(folder) / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [STEPS * epoch for epoch in range(1, EPOCHS + 1)]
    for row in rows:
        losses = [float(value) for name, value in row.items() if value and "loss" in name]
        assert len(losses) >= 2
        assert all(map(math.isfinite, losses))


def check_refuses_changes(entry: EntryPoint, folder: Path) -> None:
    """Arguments that would train something else are refused by the user's name for them, and nothing is changed."""
    before = files_of(folder)
    for refusal in entry.refused_on_resume:
        with pytest.raises(UsageError) as error:
            entry.run(folder, **refusal.arguments)
        assert error.value.key == refusal.key, f"{refusal.arguments}: {error.value}"
        assert files_of(folder) == before


def check_more_epochs_are_as_if_planned(entry: EntryPoint, folder: Path, whole: Mapping[str, Any]) -> None:
    """A run that is asked for another epoch when it is done goes on, and ends like one that was as long from the start.

    Args:
      entry: The entry point.
      folder: An empty folder.
      whole: The record of a run that had all epochs from the start.
    """
    short = read(entry.run(folder, **entry.shorter))
    assert short["step"] == whole["step"] - STEPS
    record = read(entry.run(folder))
    assert [attempt["from_step"] for attempt in record["attempts"]] == [0, short["step"]]
    assert record["digest"] == whole["digest"]
    check_tracks_each_epoch_once(entry, folder)


def check_bad_input(entry: EntryPoint, folder: Path) -> None:
    """What cannot be trained is refused in one line for each problem, before a run exists."""
    for refusal in entry.bad_input:
        with pytest.raises(UsageError) as error:
            entry.run(folder, **refusal.arguments)
        assert error.value.key == refusal.key, f"{refusal.arguments}: {error.value}"
        assert len(str(error.value).splitlines()) == len(error.value.problems)
        assert error.value.exit_code == 2
        assert files_of(folder) == {}


def check_resumes_after_a_kill(
    entry: EntryPoint, folder: Path, start: Callable[[Mapping[str, str]], Any], whole: Mapping[str, Any]
) -> None:
    """Killed while it trains the last epoch, it trains that again, to the same bits.

    Args:
      entry: The entry point.
      folder: An empty folder.
      start: Runs the entry point in this folder, in a process with these variables; returns how it ended, as
        `subprocess.run` does.
      whole: The record of a run that nothing happened to.
    """
    killed = start({**os.environ, "KERAS_BACKEND": keras.backend.backend(), KILL: str(folder)})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    record = read(entry.run(folder))
    first, second = record["attempts"]
    assert first["reason"] == "killed"
    assert second["from_step"] > 0
    assert record["digest"] == whole["digest"]
    assert record["weights_digest"] == whole["weights_digest"]
    check_tracks_each_epoch_once(entry, folder)


CHECKS = [check_a_finished_run_is_left_alone, check_tracks_each_epoch_once, check_refuses_changes]
"""The checks of a run that has come to its end; each takes the entry point and its folder."""
