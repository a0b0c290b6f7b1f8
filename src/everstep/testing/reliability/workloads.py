"""Small experiments for whole runs that are killed and resumed.

`--import everstep.testing.reliability.workloads` finds them.

Each has something that a resume can get wrong. Windows, evaluations and checkpoints do not coincide, so that a run is
resumed in the middle of everything.
"""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

import everstep
from everstep import ClassificationTask

SAMPLES, CLASSES = 1000, 4
LEDGER_SAMPLES = 60_000


def _trainer(**changes: Any) -> everstep.TrainerConfig:
    length = {} if "epochs" in changes else {"train_steps": 600}
    intervals = {"steps_per_loop": 7, "validation_interval": 30, "checkpoint_interval": 11}
    return everstep.TrainerConfig({**length, **intervals, "validation_steps": 3, **changes})


def _images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns noise with a bright corner; which corner is the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, SAMPLES)
    images = rng.normal(size=(SAMPLES, size, size, 1)).astype("float32")
    half = size // 2
    for image, label in zip(images, labels, strict=True):
        image[half * (label // 2) :, half * (label % 2) :][:half, :half] += 1
    return images, labels.astype("int32")


@dataclasses.dataclass
class CnnConfig(everstep.TaskConfig):
    """Convolutions, batch normalization, dropout."""


@everstep.register_task(CnnConfig)
class CnnTask(ClassificationTask):
    """Moving averages, and masks that are drawn at each step."""

    def build_model(self) -> keras.Model:
        head = [layers.BatchNormalization(), layers.ReLU(), layers.GlobalAveragePooling2D(), layers.Dropout(0.3)]
        return keras.Sequential(
            [keras.Input((12, 12, 1)), layers.Conv2D(8, 3, strides=2, use_bias=False), *head, layers.Dense(CLASSES)]
        )

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return _images(12)


@dataclasses.dataclass
class AugmentedConfig(everstep.TaskConfig):
    """A dense network on images that are moved at random."""


@everstep.register_task(AugmentedConfig)
class AugmentedTask(ClassificationTask):
    """Random numbers in a layer and in the step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noise = keras.random.SeedGenerator(7)

    def build_model(self) -> keras.Model:
        moved = [layers.RandomTranslation(0.1, 0.1, data_format="channels_last", seed=3), layers.Flatten()]
        return keras.Sequential(
            [keras.Input((8, 8, 1)), *moved, layers.Dense(64, activation="relu"), layers.Dense(CLASSES)]
        )

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return _images(8)

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        """Adds noise to the images, and learns from them."""
        images, labels = inputs
        noisy = images + 0.1 * keras.random.normal(ops.shape(images), seed=self.noise)
        return super().train_step((noisy, labels), model, optimizer, metrics)


@dataclasses.dataclass
class RecurrentConfig(everstep.TaskConfig):
    """An embedding and a recurrent layer with dropout."""


@everstep.register_task(RecurrentConfig)
class RecurrentTask(ClassificationTask):
    """Tells which of four tokens comes most often."""

    def build_model(self) -> keras.Model:
        recurrent = layers.GRU(16, dropout=0.2, recurrent_dropout=0.2)
        return keras.Sequential(
            [keras.Input((12,), dtype="int32"), layers.Embedding(32, 8), recurrent, layers.Dense(4)]
        )

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        tokens = np.random.default_rng(1).integers(0, 32, (SAMPLES, 12)).astype("int32")
        counts = [(tokens % 8 == token).sum(axis=1) for token in range(CLASSES)]
        return tokens, np.argmax(counts, axis=0).astype("int32")


@dataclasses.dataclass
class GrowingConfig(everstep.TaskConfig):
    """Images that grow after 100 steps."""


@everstep.register_task(GrowingConfig)
class GrowingTask(everstep.ProgressivePolicy, ClassificationTask):
    """Two stages: the second has larger images, dropout, and one layer more."""

    def num_stages(self) -> int:
        return 2

    def num_steps(self, stage: int) -> int:
        return 100

    def get_model(self, stage: int, old_model: keras.Model | None = None) -> keras.Model:
        more = [layers.Dense(8, activation="relu"), layers.Dropout(0.2)] if stage else []
        stack = [layers.Conv2D(8, 3, activation="relu"), layers.GlobalMaxPooling2D(), *more]
        return keras.Sequential([keras.Input((None, None, 1)), *stack, layers.Dense(CLASSES, name="head")])

    def get_train_dataset(self, stage: int) -> Any:
        return _images((8, 12)[stage])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return _images(12)


@everstep.register_experiment("reliability/growing")
def growing() -> everstep.ExperimentConfig:
    """Stages, averaged weights, gradients collected over three steps, and the best model exported."""
    optimization = {"gradient_accumulation_steps": 3, "ema": {"average_decay": 0.9}}
    best = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "accuracy"}
    settings = _trainer().as_dict() | {"train_steps": 300, "optimizer_config": optimization, **best}
    return everstep.ExperimentConfig(task=GrowingConfig(), trainer=everstep.ProgressiveTrainerConfig(settings))


@everstep.register_experiment("reliability/cnn")
def cnn() -> everstep.ExperimentConfig:
    """A convolutional network with batch normalization and dropout."""
    return everstep.ExperimentConfig(task=CnnConfig(), trainer=_trainer())


@everstep.register_experiment("reliability/augmented")
def augmented() -> everstep.ExperimentConfig:
    """A dense network with random augmentation, and a learning rate that follows a schedule."""
    schedule = {"type": "cosine", "cosine": {"initial_learning_rate": 1e-3, "decay_steps": 600}}
    return everstep.ExperimentConfig(
        task=AugmentedConfig(), trainer=_trainer(optimizer_config={"learning_rate": schedule})
    )


@everstep.register_experiment("reliability/recurrent")
def recurrent() -> everstep.ExperimentConfig:
    """An embedding and a GRU."""
    return everstep.ExperimentConfig(task=RecurrentConfig(), trainer=_trainer())


MODELS = ("reliability/cnn", "reliability/augmented", "reliability/recurrent")


@dataclasses.dataclass
class LedgerConfig(everstep.TaskConfig):
    """Samples that are counted."""

    samples: int = LEDGER_SAMPLES
    """How many there are."""
    seconds_per_batch: float = 0.01
    """How long a batch takes to be read, so that the epoch can be killed at any of its steps."""


class Numbers:
    """A dataset by index, whose samples are their own numbers; several processes read only their rows of a batch."""

    def __init__(self, length: int, seconds_per_batch: float) -> None:
        self._length, self._seconds = length, seconds_per_batch

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[np.ndarray]:
        time.sleep(self._seconds)
        return [np.array([index], "int32") for index in indices]


@everstep.register_task(LedgerConfig)
class LedgerTask(everstep.Task):
    """Counts how often each sample was learned from; the counts are part of the state."""

    def __init__(self, config: LedgerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        counts = np.zeros(config.samples, "int32")  # of several processes, each counts the samples of its part
        self.counts = keras.Variable(counts, trainable=False, name="counts", aggregation="sum")

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input((1,)), layers.Dense(8, activation="relu"), layers.Dense(1)])

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return Numbers(self.task_config.samples, self.task_config.seconds_per_batch if params.is_training else 0.0)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> Any:
        return ops.mean(ops.square(ops.cast(labels, "float32") / self.task_config.samples - model_outputs))

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        """Enters the samples of the batch in the ledger, and learns from them."""
        numbers = ops.reshape(inputs, (-1,))
        entries = ops.segment_sum(ops.ones_like(numbers), numbers, self.task_config.samples)
        self.counts.assign(self.counts + entries)
        features = ops.cast(inputs, "float32") / self.task_config.samples
        return super().train_step((features, inputs), model, optimizer, metrics)

    def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
        features = ops.cast(inputs, "float32") / self.task_config.samples
        return super().validation_step((features, inputs), model, metrics)


@everstep.register_experiment("reliability/ledger")
def ledger() -> everstep.ExperimentConfig:
    """One epoch, in which every sample is counted."""
    task = LedgerConfig({"train_data": {"global_batch_size": 60}})
    return everstep.ExperimentConfig(task=task, trainer=_trainer(epochs=1, checkpoint_interval=25))


@dataclasses.dataclass
class PhasesConfig(CnnConfig):
    """A network that takes its time to compile, to evaluate and to save."""

    state_bytes: int = 1000
    """How much state there is beside the model's own."""
    seconds_per_validation_batch: float = 0.0
    """How long the host is busy with one batch of an evaluation."""


@everstep.register_task(PhasesConfig)
class PhasesTask(CnnTask):
    """Leaves a file in the run directory when it is traced and when it evaluates, so that others know."""

    def __init__(self, config: PhasesConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.ballast = keras.Variable(np.ones(config.state_bytes // 4, "float32"), trainable=False, name="ballast")
        self.noise = keras.random.SeedGenerator(7)
        self._traces = 0

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        """Learns; the second trace is the one that is compiled."""
        self._traces += 1
        self._tell("compiling", self._traces > 1)
        return super().train_step(self._noisy(inputs), model, optimizer, metrics)

    def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
        """Draws random numbers, as a model that samples does, from the same generator as training."""
        return super().validation_step(self._noisy(inputs), model, metrics)

    def _noisy(self, inputs: Any) -> Any:
        images, labels = inputs
        return images + 0.1 * keras.random.normal(ops.shape(images), seed=self.noise), labels

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """Takes its time."""
        self._tell("evaluating", True)
        time.sleep(self.task_config.seconds_per_validation_batch)
        return (state or 0) + 1

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Mapping[str, Any]:
        return {"batches": float(aggregated_logs)}

    def _tell(self, phase: str, really: bool) -> None:
        if really and self.logging_dir:
            (Path(self.logging_dir) / f"{phase}.now").touch()


@everstep.register_experiment("reliability/phases")
def phases() -> everstep.ExperimentConfig:
    """A run that does not end by itself."""
    return everstep.ExperimentConfig(task=PhasesConfig(), trainer=_trainer(train_steps=10**9))
