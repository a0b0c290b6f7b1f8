"""Two small regression tasks with their own data, and one model with a head for each."""

import dataclasses

import keras
import numpy as np

import everstep as es
from everstep.checkpoint.digests import digest
from everstep.experiment import create_trainer
from everstep.multitask import MultiTaskConfig, TaskRoutine
from everstep.task.multitask.task import MultiTask
from everstep.testing.tasks import Regression


@dataclasses.dataclass
class PartConfig(es.TaskConfig):
    slope: float = 1.0
    size: int = 44
    train_data: es.DataConfig = dataclasses.field(default_factory=lambda: es.DataConfig(global_batch_size=8))
    validation_data: es.DataConfig = dataclasses.field(default_factory=lambda: es.DataConfig(global_batch_size=4))


@es.register_task(PartConfig)
class Part(Regression):
    """Learns `slope` times the sum of four numbers; evaluates 13 samples, the last one in a batch by itself."""

    def __init__(self, params=None, logging_dir=None, name=None, **attributes):
        super().__init__(**attributes)
        self._task_config, self.name = params, name

    def build_inputs(self, params, input_context=None):
        config = self.task_config
        x = np.random.default_rng(int(abs(config.slope) * 100)).normal(size=(config.size + 13, 4)).astype("float32")
        y = config.slope * x.sum(axis=1, keepdims=True)
        return (x[: config.size], y[: config.size]) if params.is_training else (x[config.size :], y[config.size :])


def heads(dropout=0.0):
    """Returns a model with one shared hidden layer and an output for each task."""
    x = inputs = keras.Input((4,))
    x = keras.layers.Dense(6, "tanh", name="trunk")(x)
    x = keras.layers.Dropout(dropout, seed=1)(x)
    return keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(x) for name in ("one", "two")})


class Pair(MultiTask):
    """Both tasks on the model above."""

    def build_model(self):
        return heads(dropout=0.2)


def pair_config(weights=(1.0, 1.0), eval_steps=(None, None), sizes=(44, 60), batches=(8, 8), **fields):
    routines = [
        TaskRoutine(
            task_name=name,
            task_config=PartConfig(slope=slope, size=size, train_data={"global_batch_size": batch}),
            task_weight=weight,
            eval_steps=steps,
        )
        for name, slope, size, batch, weight, steps in zip(
            ("one", "two"), (1.0, -2.0), sizes, batches, weights, eval_steps, strict=True
        )
    ]
    return MultiTaskConfig(task_routines=routines, **fields)


def params_of(config):
    """Returns an experiment of 12 steps, in windows of 4, evaluated every 8 and saved every 4 steps."""
    every = {"train_steps": 12, "steps_per_loop": 4, "validation_interval": 8, "checkpoint_interval": 4}
    rate = {"type": "constant", "constant": {"learning_rate": 0.01}}
    optimizer = {"optimizer": {"type": "adam"}, "learning_rate": rate}
    trainer = es.TrainerConfig({**every, "optimizer_config": optimizer})
    return es.ExperimentConfig(task=config, trainer=trainer)


def trainer_of(config, task_cls=Pair, tasks=None, evaluate=True):
    return create_trainer(params_of(config), task_cls(config, tasks=tasks), train=True, evaluate=evaluate)


def state_digest(trainer):
    return digest(trainer.engine.state())
