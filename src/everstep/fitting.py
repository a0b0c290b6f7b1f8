"""`everstep.fit`: `model.fit` on the core, with its guarantees."""

import contextlib
import dataclasses
import functools
import math
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from everstep.data.arrays import ArrayStream
from everstep.data.config import DataConfig
from everstep.data.mapped import MappedStream, class_weighted
from everstep.data.source import make_stream
from everstep.data.stream import Stream
from everstep.engine import backend
from everstep.engine.config import RuntimeConfig
from everstep.errors import UsageError
from everstep.experiment import run_experiment
from everstep.experiment_config import ExperimentConfig
from everstep.loop.config import TrainerConfig
from everstep.loop.epochs import EpochController
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.loop.learning_rate import LearningRate
from everstep.run.signals import Interrupted
from everstep.task.compiled import CompiledTask, require_compiled
from everstep.task.config import TaskConfig
from everstep.task.description import Description, describe, leave


@dataclasses.dataclass
class FitConfig(TaskConfig):
    """What `fit` is told about data and model: a run that goes on has to be told the same."""

    optimizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of the model's optimizer, as it was compiled."""
    loss: str = ""
    """The model's loss, or those of its outputs; a function by its name."""
    loss_weights: str = ""
    """What the loss of each output is multiplied by."""
    shuffle: bool = True
    """Whether arrays are shuffled."""
    class_weight: dict[int, float] | None = None
    """Weight of each class in the loss."""


def fit(
    model: keras.Model,
    data: Any,
    validation_data: Any = None,
    *,
    epochs: int = 1,
    batch_size: int = 32,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    model_dir: str | Path | None = None,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    seed: int = 0,
    verbose: bool = True,
    allow_change: Sequence[str] = (),
) -> keras.callbacks.History:
    """Trains a compiled Keras model, as `model.fit` would, several steps per compiled call.

    Example:
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        history = everstep.fit(model, (x, y), (x_test, y_test), epochs=5, model_dir="runs/mine")

    Args:
      model: A compiled model.
      data: `(x, y)` or `(x, y, sample_weight)` arrays, a `tf.data.Dataset`, a generator function, a Stream.
      validation_data: The same for the evaluation at each epoch's end.
      epochs: How many epochs there are in all; a resumed run does not start to count anew.
      batch_size: For arrays.
      callbacks: Keras callbacks.
      model_dir: The run directory, or its URL in a store: run the same call again and it resumes there. None keeps
        nothing.
      steps_per_epoch: Needed where the data does not say how many batches an epoch has.
      validation_steps: Batches per evaluation; None for all.
      shuffle: Whether arrays are shuffled, anew each epoch.
      class_weight: Weight of each class in the loss.
      seed: Seeds the order of the data, and Python, NumPy and Keras.
      verbose: Whether to print progress.
      allow_change: Keys, such as `task.optimizer.learning_rate`, that a resumed run may change although they alter
        what it computes; one that holds others, such as `task.model`, covers them. The refusal names the keys.

    Returns:
      The History, as `fit` returns it.

    Raises:
      UsageError: The call cannot be carried out, or would go on with a run that was trained otherwise.
    """
    if epochs < 1:
        raise UsageError(f"epochs: received {epochs}, must be at least 1")
    require_compiled(model)
    backend.prepare(seed)
    train = _stream(data, batch_size, True, shuffle, seed)
    train = MappedStream(train, class_weighted(class_weight)) if class_weight else train
    validation = None if validation_data is None else _stream(validation_data, batch_size, False, False, seed)
    steps = _steps(train, steps_per_epoch)
    told = describe(model)
    params = ExperimentConfig(
        task=_task_params(told, batch_size, shuffle, class_weight),
        trainer=_trainer_params(epochs * steps, steps, validation_steps, bool(model_dir)),
        runtime=RuntimeConfig(seed=seed),
    )
    task = CompiledTask(model, train, validation, params.task)
    callback_list = KerasCallbacks(callbacks, model, epochs, steps, validation is not None)
    with contextlib.ExitStack() as stack:
        stack.callback(leave, model, told)
        directory = model_dir or stack.enter_context(tempfile.TemporaryDirectory())
        _run(
            task,
            "train" if validation is None else "train_and_eval",
            params,
            directory,
            save_summary=bool(model_dir),
            controller_cls=functools.partial(_controller, told.learning_rate, callback_list, bool(model_dir)),
            export=bool(model_dir),
            verbose=verbose,
            allow_change=allow_change,
        )
    return callback_list.history


def _run(task: CompiledTask, mode: str, params: ExperimentConfig, directory: Any, **settings: Any) -> None:
    """Runs the experiment; a Ctrl-C, which has saved the state, ends as Python's callers expect it to."""
    try:
        run_experiment(None, task, mode, params, directory, **settings)
    except Interrupted as interrupted:
        if interrupted.exit_code != 128 + signal.SIGINT:
            raise
        raise KeyboardInterrupt from interrupted


def _controller(rate: float | None, callbacks: KerasCallbacks, keep: bool, **kwargs: Any) -> EpochController:
    controller = EpochController(callbacks=callbacks, keep=keep, **kwargs)
    controller.saver.parts.append(LearningRate(controller.trainer, rate))
    return controller


def _stream(data: Any, batch_size: int, training: bool, shuffle: bool, seed: int) -> Stream:
    stream = make_stream(data, _data_params(batch_size, training), training=training, seed=seed, shuffle=shuffle)
    if isinstance(stream, ArrayStream) and stream is not data:
        return ArrayStream(stream.arrays, batch_size, shuffle=shuffle, seed=seed, repeat=training)
    return stream


def _steps(stream: Stream, steps_per_epoch: int | None) -> int:
    steps = steps_per_epoch if steps_per_epoch is not None else stream.batches_per_epoch
    if steps is None:
        raise UsageError("steps_per_epoch: the data does not say how many batches an epoch has; pass steps_per_epoch=…")
    if steps < 1:
        raise UsageError(f"steps_per_epoch: received {steps}, must be at least 1")
    return steps


def _task_params(
    told: Description, batch_size: int, shuffle: bool, class_weight: Mapping[int, float] | None
) -> FitConfig:
    weights = None if class_weight is None else {int(label): float(w) for label, w in class_weight.items()}
    return FitConfig(
        model=told.model,
        optimizer=told.optimizer,
        loss=told.loss,
        loss_weights=told.loss_weights,
        train_data=_data_params(batch_size, True),
        validation_data=_data_params(batch_size, False),
        shuffle=shuffle,
        class_weight=weights,
    )


def _data_params(batch_size: int, training: bool) -> DataConfig:
    return DataConfig(global_batch_size=batch_size, is_training=training, drop_remainder=False)


def _trainer_params(steps: int, per_epoch: int, validation_steps: int | None, keep: bool) -> TrainerConfig:
    return TrainerConfig(
        train_steps=steps,
        steps_per_loop=per_epoch,
        validation_interval=per_epoch,
        validation_steps=-1 if validation_steps is None else validation_steps,
        checkpoint_interval=per_epoch if keep else 0,
        loss_upper_bound=math.inf,  # that of a regression may be large
        recovery_max_trials=-1,  # a callback may want to see it; nothing that is not finite is saved
    )
