"""`Task`: what is learned. The user's class; the loop around it is not its business."""

import abc
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.data.labels import check_labels
from everstep.data.sparse import RaggedArray, SparseArray
from everstep.errors import UsageError
from everstep.task.grad import value_and_grad
from everstep.task.initial.load import load as load_weights
from everstep.task.initial.matching import Report
from everstep.task.optim.build import build as build_optimizer
from everstep.task.optim.loss_scale import scaling_loss
from everstep.types import Batch

SMALLEST = 8
"""Arrays that are less high or wide are no pictures."""


class Task(abc.ABC):
    """Model, data, losses, metrics, one train step and one validation step.

    Only `build_inputs` must be written. The default `train_step` serves most tasks; a changed one is ordinary
    Keras code that runs compiled on every backend:

        class MyTask(everstep.Task):
            def train_step(self, inputs, model, optimizer, metrics):
                x, y = inputs
                def loss_fn():
                    y_pred = model(x, training=True)
                    return self.build_losses(y, y_pred, aux_losses=model.losses), y_pred
                (loss, y_pred), grads = everstep.value_and_grad(
                    loss_fn, model.trainable_variables, optimizer=optimizer)
                optimizer.apply(grads, model.trainable_variables)
                self.process_metrics(metrics, y, y_pred)
                return {self.loss: loss}

    What a task keeps in its attributes — further models, optimizers, metrics, variables, seed generators — is
    part of the run's state: saved, restored and compared with everything else.
    """

    loss = "loss"
    """The key under which every `train_step` returns its loss."""

    watch: str = ""
    """Which of the logs of `train_step` has to stay finite; empty for the loss, or, of steps without one, the first."""

    label_classes: int | None = None
    """How many classes the labels are from, where the step says so when it is traced; set by the engine."""

    def __init__(self, params: Any = None, logging_dir: str | None = None, name: str | None = None) -> None:
        self._task_config = params
        self._logging_dir = logging_dir or ""
        self.name = name or type(self).__name__

    @property
    def task_config(self) -> Any:
        """The configuration this task was made from."""
        return self._task_config

    @property
    def logging_dir(self) -> str:
        """Where the run writes; empty if it was not said."""
        return self._logging_dir

    @classmethod
    def create_optimizer(
        cls, optimizer_config: Any, runtime_config: Any = None, dp_config: Any = None
    ) -> keras.Optimizer:
        """Builds the optimizer and its schedule; wraps it for loss scaling when the run is in float16.

        Raises:
          UsageError: A `dp_config` is given: differential privacy is not offered.
        """
        if dp_config is not None:
            raise UsageError("differentially private training is not offered", key="dp_config", received=dp_config)
        optimizer = build_optimizer(optimizer_config)
        if runtime_config is None or runtime_config.mixed_precision_dtype != "float16":
            return optimizer
        return scaling_loss(optimizer, runtime_config.loss_scale)

    def build_model(self) -> keras.Model:
        """Returns the model."""
        raise UsageError(f"task {self.name!r} has no model", remedy="write build_model()")

    @abc.abstractmethod
    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the data that `params` (a DataConfig) describes: arrays, a dataset, a generator function.

        Called with `task.train_data` for training and with `task.validation_data` for evaluation.
        """

    def inputs_for(self, params: Any) -> Any:
        """Returns what `build_inputs` does, be it written with or without an `input_context`, which is always None."""
        takes_context = _takes(self.build_inputs, 2, "input_context")
        return self.build_inputs(params, None) if takes_context else self.build_inputs(params)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None) -> Any:
        """Returns the scalar loss, by default the sum of the model's own (`add_loss`, regularizers)."""
        if not aux_losses:
            remedy = "write build_losses(labels, model_outputs, aux_losses)"
            raise UsageError(f"task {self.name!r} has no loss", remedy=remedy)
        return sum(keras.ops.sum(loss) for loss in aux_losses)

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns new metrics for training or for evaluation."""
        return []

    def process_metrics(self, metrics: Sequence[keras.Metric], labels: Any, model_outputs: Any, **kwargs: Any) -> None:
        """Updates every metric; `kwargs` may hold `sample_weight`."""
        for metric in metrics:
            metric.update_state(labels, model_outputs, **kwargs)

    def process_compiled_metrics(
        self, compiled_metrics: keras.Metric, labels: Any, model_outputs: Any, **kwargs: Any
    ) -> None:
        """Updates the metrics that a model was compiled with, which are one; `kwargs` may hold `sample_weight`."""
        compiled_metrics.update_state(labels, model_outputs, **kwargs)

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Learns from one batch; returns `{self.loss: loss}` and any further scalars, averaged per window.

        Batches are `x`, `(x, y)` or `(x, y, weight)`; labels that a batch does not have are None. A task that learns to
        reproduce its inputs yields `(x, x)`, or calls `super().train_step((x, x), …)`.

        A compiled model learns from the loss it was compiled with and, if the task writes `build_losses`, from that
        as well.
        """
        features, labels, weight = self.unpack(inputs)
        if model.compiled:
            batch = features, labels, weight
            return {self.loss: _train_compiled(self, batch, model, optimizer, metrics)}
        weighted = self._weighted(weight)

        def loss_fn() -> tuple[Any, Any]:
            outputs = model(features, training=True)
            with labels_explained(features, labels):
                return self.build_losses(labels, outputs, aux_losses=model.losses, **weighted), outputs

        (loss, outputs), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        with labels_explained(features, labels):
            self.process_metrics(metrics, labels, outputs, **weighted)
        return {self.loss: loss}

    def unpack(self, inputs: Batch) -> tuple[Any, Any, Any]:
        """Returns features, labels and sample weights of a batch, None for those that it does not have.

        A dict by itself is handed as labels, too, to the `build_losses` of a task that writes one: it takes what it
        compares with by name, as `labels["next_word"]`. Nothing else serves as its own labels.
        """
        features, labels, weight = unpack(inputs)
        if labels is None and isinstance(features, Mapping) and self._writes("build_losses"):
            labels = features
        return features, labels, weight

    def _weighted(self, weight: Any, hook: str = "build_losses") -> dict[str, Any]:
        """Returns the keyword argument for sample weights, where there are any, that a method is called with."""
        if weight is None:
            return {}
        known = inspect.signature(getattr(self, hook)).parameters
        if "sample_weight" not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise UsageError(
                f"({', '.join(known)}) takes no sample weights, but the batches (x, y, weight) have them",
                key=f"{type(self).__name__}.{hook}",
                remedy="add sample_weight=None to its arguments",
            )
        return {"sample_weight": weight}

    def _writes(self, hook: str) -> bool:
        """Returns whether a method is the task's own."""
        return getattr(type(self), hook) is not getattr(Task, hook)

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch; a loss is optional here.

        Its loss is that of `build_losses`, alone; of a compiled model whose task writes none, the compiled one.
        """
        features, labels, weight = self.unpack(inputs)
        if model.compiled:
            return {self.loss: _validate_compiled(self, (features, labels, weight), model, metrics)}
        weighted = self._weighted(weight)
        outputs = self.inference_step(features, model)
        with labels_explained(features, labels):
            loss = self.build_losses(labels, outputs, aux_losses=model.losses, **weighted)
            self.process_metrics(metrics, labels, outputs, **weighted)
        return {self.loss: loss}

    def call_validation_step(
        self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Calls `validation_step`, be it written with or without `metrics`.

        Raises:
          UsageError: It takes none, but `build_metrics` makes some for it.
        """
        if _takes(self.validation_step, 3, "metrics"):
            return self.validation_step(inputs, model, metrics)
        if metrics:
            names = ", ".join(repr(metric.name) for metric in metrics)
            raise UsageError(
                f"(inputs, model) cannot update the metrics {names}",
                key=f"{type(self).__name__}.validation_step",
                remedy="add metrics=None to its arguments, or return none of them from build_metrics(training=False)",
            )
        return self.validation_step(inputs, model)  # type: ignore[call-arg]

    def inference_step(self, inputs: Any, model: keras.Model) -> Any:
        """Returns the model's outputs outside training."""
        return _call(model, inputs, training=False)

    def show(self, inputs: Batch, outputs: Any) -> Mapping[str, Any]:
        """Returns what trackers show of an evaluation, by name; called where `trainer.tracking.samples` asks for it.

        By default images with the class they are of and the class they are taken for, where that is what is learned.

        Args:
          inputs: The first samples of the validation data, as arrays.
          outputs: What `inference_step` returns for them, as arrays.

        Returns:
          For each name images, an array (n, h, w) or (n, h, w, channels); such an array and a list of captions; or a
          list of texts.
        """
        features, labels, _ = unpack(inputs)
        return classified(features, labels, outputs)

    def initialize(self, model: keras.Model) -> Report | list[Any] | None:
        """Loads initial weights from `task_config.init_checkpoint`, whatever of them fits the model.

        Called once, before the first step of a run that has no checkpoint. A `.keras` or `.weights.h5` file, a
        TensorFlow checkpoint, a SavedModel or another run will do. Step and optimizer start at zero.

        Returns:
          Which weights were loaded; None where there is nothing to load from.

        Raises:
          UsageError: The path does not exist, or nothing in it fits.
        """
        path = getattr(self.task_config, "init_checkpoint", "")
        return load_weights(model, path) if path else None

    def window(self, kind: str) -> str:
        """Returns how a window of `train` or `validation` steps reports their scalars.

        `mean` is over samples; `last` is for steps that return what their metrics have come to so far.
        """
        return "mean"

    def check_batch(self, inputs: Batch) -> None:
        """Looks at data on the host before it reaches the device; raises UsageError if it cannot be right.

        By default class labels are checked, where the step hands them to a sparse cross-entropy as they are. Called
        with a whole array dataset before training, else with each block of batches as it passes; a block
        has its batches stacked along a new first axis.
        """
        labels = unpack(inputs)[1]
        if self.label_classes is not None and isinstance(labels, np.ndarray):
            check_labels(labels, self.label_classes, "the labels")

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """Folds one validation step's outputs, on the host, into `state`; the first state is None.

        Each value is a tuple with one NumPy array per replica, which also answers `numpy()`.
        """
        return None

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Mapping[str, Any]:
        """Returns the metrics of what `aggregate_logs` gathered; they join the evaluation's logs.

        It is called if anything was gathered. A metric that is not one number is left out of the logs, with a warning.
        """
        return {}

    @property
    def aggregates(self) -> bool:
        """Whether validation outputs have to come back to the host, step by step."""
        return type(self).aggregate_logs is not Task.aggregate_logs


def _takes(method: Callable[..., Any], position: int, name: str) -> bool:
    """Returns whether a method can be called with so many arguments by position, or by this name."""
    parameters = inspect.signature(method).parameters
    by_position = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variable = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return variable or len(by_position) >= position or name in parameters


def unpack(inputs: Batch) -> tuple[Any, Any, Any]:
    """Returns features, labels and sample weights of `x`, `(x,)`, `(x, y)` or `(x, y, weight)`.

    Labels and weights that the batch does not have are None: inputs never serve as labels. A model that learns to
    reproduce its inputs is given `(x, x)`.
    """
    alone = isinstance(inputs, SparseArray | RaggedArray)
    if isinstance(inputs, list | tuple) and 1 <= len(inputs) <= 3 and not alone:
        x, y, weight = (*inputs, None, None)[:3]
        return x, y, weight
    return inputs, None, None


@contextlib.contextmanager
def labels_explained(features: Any, labels: Any) -> Iterator[None]:
    """Around a loss or metrics: where they fail because the batch has no labels, says so.

    Raises:
      UsageError: They failed, and there are no labels, or only the features in their place.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if labels is not None and labels is not features:
            raise
        raise UsageError(
            "the batches are inputs without labels, but the loss or a metric compares with labels",
            remedy="make them (x, y) or (x, y, sample_weight); for a model that learns to reproduce its inputs, (x, x)",
        ) from error


# -- the default steps of a compiled model ----------------------------------------------------------------------------

# - The training loss is the compiled one, with what the model's layers add, plus the task's
#   `build_losses(labels, outputs, aux_losses=None)`, where it writes one.
# - The loss of an evaluation is the task's `build_losses(labels, outputs, aux_losses=model.losses)` alone, where it
#   writes one; else the compiled loss.
# - The task's metrics go through `process_metrics`, the compiled ones through `process_compiled_metrics`.


def _train_compiled(
    task: Any, batch: tuple[Any, Any, Any], model: keras.Model, optimizer: Any, metrics: Sequence[Any]
) -> Any:
    """Learns from one batch, (x, y, weight), as the model was compiled to; returns the loss."""
    x, y, weight = batch
    weighted = task._weighted(weight) if task._writes("build_losses") else {}

    def loss_fn() -> tuple[Any, Any]:
        y_pred = _call(model, x, training=True)
        with labels_explained(x, y):
            if not task._writes("build_losses"):
                return compiled_loss(batch, y_pred, model, training=True), y_pred
            if not has_loss(model):
                return task.build_losses(y, y_pred, aux_losses=model.losses, **weighted), y_pred
            own = task.build_losses(y, y_pred, aux_losses=None, **weighted)
            compiled = compiled_loss(batch, y_pred, model, training=True)
            return compiled + keras.ops.cast(own, compiled.dtype), y_pred

    (loss, y_pred), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
    optimizer.apply(grads, model.trainable_variables)
    with labels_explained(x, y):
        _update_metrics(task, batch, y_pred, model, metrics)
    return loss


def _validate_compiled(task: Any, batch: tuple[Any, Any, Any], model: keras.Model, metrics: Sequence[Any]) -> Any:
    """Evaluates one batch; returns the loss."""
    x, y, weight = batch
    y_pred = task.inference_step(x, model)
    with labels_explained(x, y):
        if task._writes("build_losses"):
            loss = task.build_losses(y, y_pred, aux_losses=model.losses, **task._weighted(weight))
        else:
            loss = compiled_loss(batch, y_pred, model, training=False)
        _update_metrics(task, batch, y_pred, model, metrics)
    return loss


def compiled_loss(batch: tuple[Any, Any, Any], y_pred: Any, model: keras.Model, training: bool) -> Any:
    """Returns the loss that the model was compiled with, and the model's own."""
    x, y, weight = batch
    return model._compute_loss(x, y, y_pred, weight, training=training)  # which knows of overrides without `training`


def has_loss(model: keras.Model) -> bool:
    """Returns whether the model was compiled with a loss, or computes one in a way of its own."""
    return model.loss is not None or type(model).compute_loss is not keras.Model.compute_loss


def _update_metrics(
    task: Any, batch: tuple[Any, Any, Any], y_pred: Any, model: keras.Model, metrics: Sequence[Any]
) -> None:
    """Updates the task's metrics and the compiled ones."""
    x, y, weight = batch
    compiled = {id(metric) for metric in model.metrics}
    own = [metric for metric in metrics if id(metric) not in compiled]
    if own:
        task.process_metrics(own, y, y_pred, **task._weighted(weight, "process_metrics"))
    if not task._writes("process_compiled_metrics"):
        model.compute_metrics(x, y, y_pred, sample_weight=weight)
    elif model._compile_metrics is not None:
        weighted: Mapping[str, Any] = task._weighted(weight, "process_compiled_metrics")
        task.process_compiled_metrics(model._compile_metrics, y, y_pred, **weighted)


def _call(model: keras.Model, x: Any, training: bool) -> Any:
    """Calls a model, with `training` only where its `call` knows the word."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def compiled_metrics(model: keras.Model, own_steps: bool) -> list[keras.Metric]:
    """Returns the metrics of a compiled model; the mean of its loss is one where its own steps keep it."""
    return [m for m in model.metrics if own_steps or m.name != "loss"]


# -- what a task shows of an evaluation by default --------------------------------------------------------------------


def classified(features: Any, labels: Any, outputs: Any) -> Mapping[str, Any]:
    """Returns pictures with the class they are of and the class they are taken for; nothing where these are none.

    Args:
      features: Pictures (n, h, w) or (n, h, w, 1, 3 or 4).
      labels: Whole numbers (n,) or (n, 1), or one for each class (n, classes).
      outputs: A number for each class (n, classes); the largest is the prediction.
    """
    arrays = (features, labels, outputs)
    if not all(isinstance(array, np.ndarray) for array in arrays) or not _are_pictures(features):
        return {}
    if outputs.ndim != 2 or outputs.shape[1] < 2 or labels.dtype.kind not in "iuf":
        return {}
    truth = labels.argmax(axis=1) if labels.shape == outputs.shape else labels.reshape(len(labels), -1)[:, 0]
    pairs = zip(truth.tolist(), outputs.argmax(axis=1).tolist(), strict=True)
    return {"predictions": (features, [f"truth {int(one)}, prediction {other}" for one, other in pairs])}


def _are_pictures(array: np.ndarray) -> bool:
    channels = array.shape[3] if array.ndim == 4 else 1
    return array.ndim in (3, 4) and min(array.shape[1:3]) >= SMALLEST and channels in (1, 3, 4)
