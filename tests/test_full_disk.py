"""Whole runs on a disk that fills up: `save_failure` decides whether the run stops or continues.

Run as a program, inside a mount namespace of its own, this file is such a run:
`unshare --user --map-root-user --mount python test_full_disk.py <folder> <policy> <bytes left>`.
"""

import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import everstep as es
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.errors import TrainingError

pytestmark = pytest.mark.slow

DISK = 12_000_000
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]
ENOUGH_FOR_A_RECORD = 200_000
STEPS, WINDOW, FULL_AT, FREE_AT = 60, 5, 25, 45
ROWS = list(range(WINDOW, STEPS + 1, WINDOW))


class Wide(es.Task):
    """A model whose checkpoints are larger than everything else that a run writes, and whose logs are large, too."""

    def build_model(self):
        return keras.Sequential([keras.Input((100,)), keras.layers.Dense(1000), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(64, 100)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean(keras.ops.square(labels - model_outputs))

    def train_step(self, inputs, model, optimizer, metrics):
        logs = super().train_step(inputs, model, optimizer, metrics)
        return logs | {f"figure_{number}": logs["loss"] * number for number in range(70)}


def filling(folder, left, frees):
    """Returns an action that fills the disk after the second save and, with `frees`, frees it after the fourth."""
    filler, windows = folder / "filler", itertools.count(1)

    def act(logs):
        step = WINDOW * next(windows)
        if step == FULL_AT:
            until(lambda: (folder / "run" / "checkpoints" / "20").exists())  # the running save needs its space
            filler.write_bytes(bytes(shutil.disk_usage(folder).free - left))
        if step == FREE_AT and frees:
            filler.unlink()

    return act


def until(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, "the condition was never met"
        time.sleep(0.01)


def attempt(directory, policy, action=lambda logs: None):
    """Trains; returns the error that the run ended with, empty if it is done."""
    trainer = {"train_steps": STEPS, "steps_per_loop": WINDOW, "checkpoint_interval": 10, "max_to_keep": 2}
    trainer |= {"save_failure": policy, "optimizer_config": {"optimizer": {"type": "sgd"}}}
    data = {"global_batch_size": 16}
    params = es.ExperimentConfig({"trainer": trainer, "task": {"train_data": data, "validation_data": data}})
    try:
        es.run_experiment(
            Wide(params.task), params, directory, "train", export=False, verbose=False, train_actions=[action]
        )
    except TrainingError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def state_of_run(directory, error):
    """Returns what the run directory holds after an attempt."""
    record = json.loads((directory / "run.json").read_text())
    checkpointer = OrbaxCheckpointer(directory / "checkpoints", run=record["id"])
    steps = checkpointer.steps()
    checkpointer.restore()
    checkpointer.close()
    reason = record["attempts"][-1]["reason"]
    rows = [int(line.partition(",")[0]) for line in (directory / "history.csv").read_text().splitlines()[1:]]
    return {"error": error, "status": record["status"], "reason": reason, "checkpoints": steps, "rows": rows}


def program(folder, policy, left):
    """Trains on a separate disk that fills up; a stopped run is resumed when there is space again."""
    logging.basicConfig(format="%(name)s: %(message)s")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=True)
    run = folder / "run"
    outcomes = [state_of_run(run, attempt(run, policy, filling(folder, left, frees=policy == "continue")))]
    if policy == "stop":
        (folder / "filler").unlink()
        outcomes.append(state_of_run(run, attempt(run, policy)))
    print(json.dumps(outcomes))


def run_in_namespace(folder, policy, left):
    """Runs `program`; returns its outcomes, and what it wrote to standard error."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no command `unshare` on this system")
    probe = subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"`{' '.join(NAMESPACE)}` is not allowed: {probe.stderr.strip()}")
    command = [*NAMESPACE, sys.executable, __file__, str(folder), policy, str(left)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.full), ENOUGH_FOR_A_RECORD])
def test_a_run_that_should_stop_reports_why_and_resumes_when_there_is_space(tmp_path, left):
    (stopped, finished), log = run_in_namespace(tmp_path, "stop", left)
    assert stopped["error"].startswith("SaveError: ")
    assert "No space left on device" in stopped["error"]
    assert stopped["checkpoints"] == [10, 20]
    if left:
        assert stopped["status"] == "failed"
        assert stopped["reason"] == stopped["error"]
    else:
        assert log.count("run.json cannot be written: No space left on device") == 1
    assert (finished["error"], finished["status"], finished["reason"]) == ("", "finished", "done")
    assert finished["checkpoints"][-1] == STEPS
    assert finished["rows"] == ROWS


@pytest.mark.full
def test_a_run_that_should_continue_has_everything_in_the_end(tmp_path):
    (outcome,), log = run_in_namespace(tmp_path, "continue", 0)
    assert (outcome["error"], outcome["status"], outcome["reason"]) == ("", "finished", "done")
    assert outcome["checkpoints"][-1] == STEPS
    assert outcome["rows"] == ROWS
    for kind in ("HistoryTracker", "TensorBoardTracker"):
        assert log.count(f"{kind} cannot write ([Errno 28] No space left on device") == 1
        assert log.count(f"{kind} can write again") == 1
    assert log.count("; training continues\n") == 2  # the steps 30 and 40


if __name__ == "__main__":
    program(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
