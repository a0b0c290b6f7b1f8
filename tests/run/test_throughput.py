"""Looking on changes nothing: throughput, the machine's figures and traces, and the same bits as without them."""

import csv
import gzip
import json
import threading

import keras
import numpy as np
import pytest

import everstep
from everstep.run import cost as costs
from everstep.run import profiling
from everstep.run.record import read

pytestmark = pytest.mark.backend

SAMPLES, BATCH = 100, 32  # the last batch of an epoch is smaller


class Line(everstep.Task):
    def build_model(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(SAMPLES, 4)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean((labels - model_outputs) ** 2)


def train(directory, mode="train", **trainer):
    params = everstep.ExperimentConfig()
    steps = {"train_steps": 24, "steps_per_loop": 4, "checkpoint_interval": 0, "validation_interval": 24}
    data = {"global_batch_size": BATCH, "drop_remainder": False}
    params.override({"trainer": steps | trainer, "task": {"train_data": data, "validation_data": data}})
    everstep.run_experiment(Line(), params, directory, mode, export=False, verbose=True)
    return read(directory)


def rows(directory):
    with (directory / "history.csv").open() as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain") / "run"
    return directory, train(directory)


def test_samples_are_counted_as_they_are(plain_run):
    """Four steps of 32, 32, 32 and 4: a hundred, not 128."""
    for row in rows(plain_run[0]):
        assert row["samples_per_second"] / row["steps_per_second"] == pytest.approx(SAMPLES / 4)
        assert 0 <= row["data_wait"] <= 1
        assert "mfu" not in row, "the peak of a CPU is unknown"
    assert not (plain_run[0] / "profile").exists()
    assert "everstep-system" not in [thread.name for thread in threading.enumerate()]


def test_mfu_is_the_share_of_the_peak(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "device_kind", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(costs, "SECONDS_BEFORE_COUNTING", 0.0)
    cost = train(tmp_path / "run")["cost"]
    for row in rows(tmp_path / "run"):
        assert row["mfu"] == pytest.approx(cost["flops_per_train_step"] * row["steps_per_second"] / 494e12)


def test_the_machine_is_watched(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    train(tmp_path / "run", "train_and_eval", train_steps=100, tracking={"system_seconds": 0.1})
    found = dict(events(tmp_path / "run" / "train"))
    assert 0 < found["system/process_memory_usage_megabytes"] < found["system/system_memory_usage_megabytes"] * 100
    assert 0 <= found["system/cpu_utilization_percentage"] <= 100
    assert found["system/disk_available_megabytes"] > 0
    assert not [name for row in rows(tmp_path / "run") for name in row if "system" in name]
    assert set(read(tmp_path / "run")["metrics"]) == {"train", "validation"}


def events(folder):
    """Yields every scalar in the event files of a folder, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in folder.glob("*tfevents*"):
        for event in LegacyEventFileLoader(str(path)).Load():
            yield from ((value.tag, value.simple_value) for value in event.summary.value)


def test_a_trace_holds_our_steps_and_changes_nothing(tmp_path, plain_run, capfd):
    directory = tmp_path / "run"
    record = train(directory, profile="8..12")
    assert (record["digest"], record["weights_digest"]) == (plain_run[1]["digest"], plain_run[1]["weights_digest"])
    losses = [[row["training_loss"] for row in rows(one)] for one in (directory, plain_run[0])]
    assert losses[0] == losses[1]
    steps = sorted(traced(directory / "profile"))
    assert steps[0] == 8
    assert steps[-1] < 12
    assert "profile of steps 8 to 12: " in capfd.readouterr().err


def traced(folder):
    """Yields the numbers of our steps in the trace of any backend."""
    if keras.backend.backend() == "torch":
        (path,) = folder.glob("*.pt.trace.json.gz")
        found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        named = [event["name"] for event in found if event.get("cat") == "user_annotation"]
        yield from (int(name.removeprefix("train step ")) for name in named if name.startswith("train step "))
        return
    from jax.profiler import ProfileData

    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    for plane in ProfileData.from_file(str(path)).planes:
        for event in (event for line in plane.lines for event in line.events):
            yield from (int(value) for name, value in event.stats if event.name == "train" and name == "step_num")


def test_a_trace_of_its_own_choice(tmp_path, capfd):
    """After the first window; and one that the end of training cuts short is written."""
    train(tmp_path / "run", profile="auto")
    assert "profile of steps 4 to 24: " in capfd.readouterr().err
    assert sorted(traced(tmp_path / "run" / "profile"))[0] == 4
    train(tmp_path / "run", profile="auto")  # nothing is left to train, and to look at
    assert "profile of" not in capfd.readouterr().err


def test_a_profiler_that_fails_is_no_reason_to_stop(tmp_path, monkeypatch, caplog, plain_run):
    def broken(*args):
        raise RuntimeError("another profiler is at work")

    monkeypatch.setattr(profiling, "Trace", broken)
    assert train(tmp_path / "run", profile="auto")["digest"] == plain_run[1]["digest"]
    assert "no trace could be taken: RuntimeError: another profiler is at work" in caplog.text
