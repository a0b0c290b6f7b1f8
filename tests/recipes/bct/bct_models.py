"""Tiny models and data for the tests of backward-compatible training."""

import dataclasses

import keras
import numpy as np

import everstep as es
from everstep.bct import BCTConfig, BCTTask, with_classifier

NAMES = ["ant", "bee", "cat", "dog"]


def samples(count: int = 64, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    labels = np.arange(count) % classes
    centres = rng.normal(size=(classes, 6))
    return (centres[labels] + 0.3 * rng.normal(size=(count, 6))).astype("float32"), labels.astype("int32")


def backbone(size: int = 5, norm: bool = False) -> keras.Model:
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="relu")]
    layers += [keras.layers.BatchNormalization()] if norm else []
    return keras.Sequential([*layers, keras.layers.Dense(size)])


def old_model(names=("cat", "ant"), size: int = 5, norm: bool = True, **settings) -> keras.Model:
    """A model whose classes are in another order than the new one's."""
    keras.utils.set_random_seed(3)
    model = with_classifier(backbone(size, norm), names, **settings)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.moving_mean.assign(np.linspace(-1, 1, 8))
            layer.moving_variance.assign(np.linspace(0.5, 2, 8))
    return model


@dataclasses.dataclass
class TinyConfig(BCTConfig):
    """Four classes."""

    classes: list[str] = dataclasses.field(default_factory=lambda: list(NAMES))
    size: int = 5
    dataset_ids: bool = False


class TinyTask(BCTTask):
    """Four clusters."""

    def build_embedding(self):
        dropped = keras.layers.Dropout(0.1)
        inner = backbone(self.task_config.size, norm=True)
        return keras.Sequential([keras.Input((6,)), dropped, *inner.layers])

    def build_inputs(self, params, input_context=None):
        x, y = samples()
        ids = (np.arange(len(y)) % 3).astype("int32")
        return x, {"label": y, "dataset_id": ids} if self.task_config.dataset_ids else y


def params(steps: int = 6, **task) -> es.ExperimentConfig:
    made = es.ExperimentConfig(
        task=TinyConfig(train_data=es.DataConfig(global_batch_size=16), validation_data=es.DataConfig()),
        trainer=es.TrainerConfig(train_steps=steps, steps_per_loop=2, checkpoint_interval=2),
    )
    made.override({"task": task})
    return made


def train(directory, made: es.ExperimentConfig, **settings):
    """Returns the task, its model and the logs."""
    task = TinyTask(made.task)
    model, logs = es.run_experiment(task, made, directory, save_summary=False, export=False, verbose=False, **settings)
    return task, model, logs


def weights(model: keras.Model) -> list[np.ndarray]:
    return [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in model.variables]


def same_bits(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
