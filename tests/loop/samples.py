"""A trainer that only counts, a checkpointer in memory, and a task that trains in no time."""

import keras
import numpy as np

import everstep as es
from everstep.checkpoint.checkpointer import Checkpointer
from everstep.loop.inner_loop import InnerLoop
from everstep.testing import models
from everstep.testing.tasks import Regression


class Counter:
    """`train`, `evaluate` and `global_step`, as people write them who know nothing of a loop."""

    def __init__(self, speed=1):
        self.global_step, self.speed = 0, speed
        self.events = []

    def train(self, num_steps, **calls):
        self.events.append(f"train {num_steps}")
        self.global_step += num_steps * self.speed
        return {"training_loss": 1 / self.global_step}

    def evaluate(self, num_steps, **calls):
        self.events.append(f"evaluate {self.global_step}")
        return {"validation_loss": float(self.global_step)}


class SavedCounter(Counter, InnerLoop):
    """One that a controller can drive: it can be saved, too."""

    def state(self, into=None):
        if self.global_step:  # the state before the first step is only checked
            self.events.append(f"save {self.global_step}")
        return {"steps": np.array(self.global_step)}, {"step": self.global_step}

    def restore(self, state, meta):
        self.global_step = meta["step"]


class MemoryCheckpointer(Checkpointer):
    def __init__(self):
        self.saved = {}

    def save(self, step, state, meta, metrics=None, replace=False):
        self.saved[step] = state, meta

    def restore(self, step=None):
        return self.saved[max(self.saved) if step is None else step]

    def steps(self):
        return sorted(self.saved)

    def wait(self):
        pass

    def close(self):
        pass


class SlowCheckpointer(MemoryCheckpointer):
    """Has written a checkpoint when it is waited for, or has failed with an error."""

    def __init__(self, error=None):
        super().__init__()
        self.unwritten, self.error = {}, error

    def save(self, step, state, meta, metrics=None, replace=False):
        self.unwritten[step] = state, meta

    def wait(self):
        if self.unwritten and self.error is not None:
            raise self.error
        self.saved.update(self.unwritten)
        self.unwritten.clear()


class TinyTask(Regression):
    """44 samples in 5 full batches an epoch; 13 to evaluate, the last one by itself."""

    def build_model(self):
        return models.mlp()

    def build_inputs(self, params, input_context=None):
        x, y = models.samples(models.plain_mlp(), 57)
        return (x[:44], y[:44]) if params.is_training else (x[44:], y[44:])


def tiny_params(**trainer):
    """Returns an experiment of 12 steps: loops of 4, evaluated and saved every 8."""
    optimizer = {
        "optimizer": {"type": "adam"},
        "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
    }
    every = {"steps_per_loop": 4, "validation_interval": 8, "checkpoint_interval": 8}
    return es.ExperimentConfig(
        task=es.TaskConfig(
            train_data=es.DataConfig(global_batch_size=8, is_training=True),
            validation_data=es.DataConfig(global_batch_size=4, is_training=False),
        ),
        trainer=es.TrainerConfig({"train_steps": 12, **every, "optimizer_config": optimizer, **trainer}),
    )


def run(mode, model_dir, task=None, params=None, **kwargs):
    """Runs the tiny task, quietly and without exporting it; keywords of the trainer's section go there."""
    fields = {name for name in kwargs if hasattr(es.TrainerConfig(), name) and not name.endswith("_actions")}
    fields = {name: kwargs.pop(name) for name in fields}
    task, params = task or TinyTask(), params or tiny_params(**fields)
    return es.run_experiment(task, params, model_dir, mode, **{"export": False, "verbose": False, **kwargs})


def weights(model):
    return np.concatenate([keras.ops.convert_to_numpy(v).ravel() for v in model.trainable_variables])
