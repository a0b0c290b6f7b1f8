"""The default `run` of a flow, from the prepared data on: on the loop, resumed by itself, tracked as it goes."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from everstep.data.arrays import ArrayStream
from everstep.data.config import DataConfig
from everstep.data.source import make_stream
from everstep.data.stream import Stream
from everstep.engine import backend
from everstep.engine.config import RuntimeConfig
from everstep.errors import UsageError, kind_of
from everstep.experiment import run_experiment
from everstep.experiment_config import ExperimentConfig
from everstep.flow.controller import FlowController, FlowWatcher
from everstep.flow.ending import finish
from everstep.flow.splits import Splits, splits_of
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.loop.per_epoch import per_epoch
from everstep.run.record import Run
from everstep.run.signals import as_python_interrupts
from everstep.task.compiled import CompiledTask, require_compiled
from everstep.task.config import TaskConfig
from everstep.task.description import Description, describe, leave


@dataclasses.dataclass
class FlowConfig(TaskConfig):
    """What a flow tells the loop of itself: a run that goes on has to be told the same."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"epoch", "catalog"})

    flow: str = ""
    """The name of the task's class."""
    epoch: int = 1
    """How many epochs there are in all."""
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The task's other parameters."""
    catalog: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Where the data was; whether it is the same, its fingerprint says."""
    optimizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of the model's optimizer, as it was compiled."""
    loss: str = ""
    """The model's loss, or those of its outputs; a function by its name."""
    loss_weights: str = ""
    """What the loss of each output is multiplied by."""


def train(task: Any) -> Mapping[str, float]:
    """Builds, trains, evaluates, saves and logs; returns the final metrics.

    Args:
      task: A `FlowTask` whose data is prepared.

    Raises:
      UsageError: The request cannot be carried out, or would go on with a run that was trained otherwise.
      TrainingError: The run started and failed.
    """
    context = task._opened()
    task.directory = context.directory
    splits = splits_of(task.dataset, task.params, type(task).__name__)
    context.hand_over()
    with contextlib.closing(context):
        task.model = model = _built(task, context)
        serving = _model(task.build_serving_model(model), task, "build_serving_model")
        told = describe(model)
        _train(task, context, model, told, splits, serving)
        leave(model, told)
    return task.metrics


def _built(task: Any, context: Any) -> keras.Model:
    """Returns the compiled model; its initial weights depend on the seed alone, not on what was drawn before."""
    backend.prepare(task.params.seed)
    model = _model(task.build_model(), task, "build_model")
    if not model.compiled:
        task.compile_model(model)
    elif context.settings.has_optimizer_file and not task._used_optimizer:
        raise UsageError(
            f"{type(task).__name__}.build_model() compiled the model with an optimizer of its own, so what "
            "config/optimizer.yaml says would be ignored: compile with optimizer=self.build_optimizer(), or remove it"
        )
    require_compiled(model)
    return model


def _model(returned: Any, task: Any, hook: str) -> keras.Model:
    if not isinstance(returned, keras.Model):
        raise UsageError(f"{type(task).__name__}.{hook}() returned {kind_of(returned)}, expected a keras.Model")
    return returned


def _train(
    task: Any, context: Any, model: keras.Model, told: Description, splits: Splits, serving: keras.Model
) -> None:
    """Trains up to the configured epoch, from wherever the run is, and finishes the run."""
    params = task.params
    stream = _stream(splits.train, params, training=True)
    validation = None if splits.validation is None else _stream(splits.validation, params, training=False)
    steps = stream.batches_per_epoch
    if not steps:
        raise UsageError(f"{type(task).__name__}.dataset.train_data does not say how many batches an epoch has")
    config = _config(context.settings, told, steps)
    watcher = FlowWatcher(context, model.name)
    callbacks = KerasCallbacks([*task.build_callbacks(), watcher], model, params.epoch, steps, validation is not None)
    looped = functools.partial(FlowController, context=context, callbacks=callbacks, rate=told.learning_rate)

    def at_end(run: Run) -> None:
        task.history = {name: list(values) for name, values in callbacks.history.history.items()}
        task.metrics = finish(task, context, splits, serving, run)

    with as_python_interrupts():
        run_experiment(
            None,
            CompiledTask(model, stream, validation, config.task),
            "train" if validation is None else "train_and_eval",
            config,
            context.directory,
            controller_cls=looped,
            export=False,
            verbose=context.verbose,
            allow_change=context.allow_change,
            experiment=context.settings.task,
            record=context.record(),
            code_root=context.root,
            at_end=at_end,
        )


def _stream(data: Any, params: Any, training: bool) -> Stream:
    config = DataConfig(global_batch_size=params.batch_size, is_training=training, drop_remainder=False)
    stream = make_stream(data, config, training=training, seed=params.seed)
    if isinstance(stream, ArrayStream) and stream is not data:
        shuffle = training and params.shuffle
        return ArrayStream(stream.arrays, params.batch_size, shuffle=shuffle, seed=params.seed, repeat=training)
    return stream


def _config(settings: Any, told: Description, steps: int) -> ExperimentConfig:
    params = settings.params.as_dict()
    data = DataConfig(global_batch_size=params["batch_size"], drop_remainder=False)
    task = FlowConfig(
        flow=settings.task,
        epoch=params.pop("epoch"),
        parameters={key: value for key, value in params.items() if key not in ("seed", "batch_size")},
        catalog=dict(settings.catalog),
        model=told.model,
        optimizer=told.optimizer,
        loss=told.loss,
        loss_weights=told.loss_weights,
        train_data=data,
        validation_data=data,
    )
    return ExperimentConfig(
        task=task,
        trainer=per_epoch(settings.params.epoch, steps, max_to_keep=2),
        runtime=RuntimeConfig(seed=params["seed"]),
    )
