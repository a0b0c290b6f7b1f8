"""Trains on several JAX devices in a subprocess, since their number is set before JAX starts.

`check_sharding.py DEVICES PART …` prints one JSON value, or fails.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"

import collections
import csv
import gc
import json
import pathlib

import jax
import keras
import numpy as np

import everstep
from everstep.engine.sharding import ShardingPlan
from everstep.loop.trainer_creation import create_trainer

X = np.random.default_rng(0).normal(size=(512, 128)).astype("float32")
Y = X @ np.random.default_rng(1).normal(size=(128, 4)).astype("float32")
LAYOUT = {"dense/kernel": [None, "model"], "dense_1/kernel": ["model"]}
RUNTIMES = {
    "one": {},
    "data": {"distribution_strategy": "mirrored"},
    "mesh": {"mesh": {"data": 2, "model": 4}},
    "fsdp": {"sharding": "fsdp"},
    "fsdp on a mesh": {"mesh": {"data": 2, "model": 4}, "sharding": "fsdp"},
    "layout": {"mesh": {"data": 2, "model": 4}, "sharding": LAYOUT},
}


class Regression(everstep.Task):
    width, depth = 256, 2

    def build_model(self):
        hidden = [keras.layers.Dense(self.width, "relu") for _ in range(self.depth)]
        return keras.Sequential([keras.Input((128,)), *hidden, keras.layers.Dropout(0.1), keras.layers.Dense(4)])

    def build_inputs(self, params, input_context=None):
        return X, Y

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean((labels - model_outputs) ** 2)


def experiment(kind, steps):
    config = everstep.ExperimentConfig()
    data = {"train_data": {"global_batch_size": 32}, "validation_data": {"global_batch_size": 100}}
    optimizer = {"optimizer": {"type": "adamw"}, "ema": {}}
    trainer = {"train_steps": steps, "steps_per_loop": 10, "validation_interval": 40, "checkpoint_interval": 20}
    config.override({"task": data, "runtime": RUNTIMES[kind], "trainer": {**trainer, "optimizer_config": optimizer}})
    return config


def run(directory, kind, steps=80, task=None, **arguments):
    config = experiment(kind, int(steps))
    everstep.run_experiment(task or Regression(), config, directory, verbose=False, export=False, **arguments)
    record = json.loads(pathlib.Path(directory, "run.json").read_text())
    with open(pathlib.Path(directory, "history.csv")) as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["training_loss"]) for row in rows if row.get("training_loss")]
    return {"losses": losses, "digest": record["digest"], "engine": record["environment"]["engine"]}


def same_losses(directory):
    """All ways to use the devices, one twice."""
    kinds = [*RUNTIMES, "fsdp"]
    return [[kind, run(f"{directory}/{number}", kind, 40)] for number, kind in enumerate(kinds)]


def whole_and_resumed(whole, resumed):
    """A run without a stop, and the rest of one that was killed."""
    return [run(directory, "fsdp") for directory in (whole, resumed)]


def killed(directory, step):
    """Dies without a word after a step."""

    def kill(logs):
        if len(seen := [*kill.seen, logs]) * 10 >= int(step):
            os.kill(os.getpid(), 9)
        kill.seen = seen

    kill.seen = []
    return run(directory, "fsdp", train_actions=[kill])


def bytes_per_device():
    """Returns the bytes of all live arrays by device; arrays that share memory count once."""
    gc.collect()
    found = {}
    for array in jax.live_arrays():
        for shard in array.addressable_shards:
            found[shard.device.id, shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    totals = collections.Counter()
    for (device, _), size in found.items():
        totals[device] += size
    return totals


def too_large(directory):
    """The state of a model would not fit on any device; the most that a device holds at any time is measured."""

    class Wide(Regression):
        width, depth = 1024, 4

    peaks, init = [], keras.Variable.__init__

    def measured_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        peaks.append(max(bytes_per_device().values(), default=0))

    keras.Variable.__init__ = measured_init
    try:
        trained, engines, task = [], [], Wide()

        def trainer(params):
            created = create_trainer(params, task, train=True, evaluate=True)
            engines.append(created.engine)
            return created

        measure = [lambda logs: trained.append(max(bytes_per_device().values()))]
        run(directory, "fsdp", 20, task, train_actions=measure, trainer=trainer)
    finally:
        keras.Variable.__init__ = init
    variables = engines[0].variables
    shapes = {key: tuple(variable.shape) for key, variable in variables.items()}

    def predicted(plan):
        specs = plan.specs(shapes)
        return sum(plan.bytes_per_device(shapes[key], specs[key], variables[key].dtype) for key in shapes)

    plans = {"replicated": ShardingPlan({"data": 8}), "fsdp": ShardingPlan({"data": 8}, "fsdp")}
    bytes_of = {name: predicted(plan) for name, plan in plans.items()}
    return {**bytes_of, "initialised": max(peaks), "trained": max(trained)}


if __name__ == "__main__":
    gc.freeze()  # what is imported is not looked through for each variable that is measured
    part = {
        "same_losses": same_losses,
        "run": run,
        "whole_and_resumed": whole_and_resumed,
        "killed": killed,
        "too_large": too_large,
    }[sys.argv[2]]
    print(json.dumps(part(*sys.argv[3:])))
