"""`Task`: what is learned, written by the user; it knows nothing of the loop around it."""

import abc
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.data import RaggedArray, SparseArray, check_labels
from everstep.errors import UsageError
from everstep.private_names import refuse_private_names
from everstep.task.grad import value_and_grad
from everstep.task.initial.loading import load as load_weights
from everstep.task.initial.matching import Report
from everstep.task.optim.building import build as build_optimizer
from everstep.task.optim.loss_scale import scaling_loss
from everstep.types import Batch

SMALLEST_IMAGE = 8
"""Arrays of less height or width are not taken for images."""


class Task(abc.ABC):
    """Model, data, losses, metrics, one train step and one validation step.

    Only `build_inputs` must be written. The default `train_step` is enough for most tasks; your own is ordinary Keras
    code that runs compiled on every backend:

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

    Attributes of a task that hold variables — further models, optimizers, metrics, variables, seed generators — are
    part of the state of the run: they are saved and restored with everything else.
    """

    loss = "loss"
    """The key under which every `train_step` returns its loss."""

    watch: str = ""
    """The log of `train_step` that must stay finite; empty for the loss, or, without a loss, the first one."""

    averages_batches: bool = False
    """Whether every batch counts the same when an optimizer accumulates gradients, as in Keras's `fit`; otherwise it
    counts by `batch_weight`."""

    keeps_other_variables: bool = False
    """Whether steps may use variables that neither the model, the optimizer, the metrics nor the task hold; these are
    then part of the state. Otherwise such a variable is refused: it is likely one that should be trained."""

    label_classes: int | None = None
    """The number of classes of the labels, if tracing the step shows it; set by the engine."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_private_names(cls)

    def __init__(self, params: Any = None, logging_dir: str | None = None, name: str | None = None) -> None:
        self._task_config = params
        self._logging_dir = logging_dir or ""
        self.name = name or type(self).__name__

    @property
    def task_config(self) -> Any:
        """The configuration that this task was created with."""
        return self._task_config

    @property
    def logging_dir(self) -> str:
        """The directory that the run writes to; empty if it is unknown."""
        return self._logging_dir

    @classmethod
    def create_optimizer(
        cls, optimizer_config: Any, runtime_config: Any = None, dp_config: Any = None
    ) -> keras.Optimizer:
        """Builds the optimizer and its schedule; wraps it for loss scaling if the run computes in float16.

        Raises:
          UsageError: A `dp_config` is passed: differential privacy is not supported.
        """
        if dp_config is not None:
            raise UsageError("differentially private training is not supported", key="dp_config", received=dp_config)
        optimizer = build_optimizer(optimizer_config)
        if runtime_config is None or runtime_config.mixed_precision_dtype != "float16":
            return optimizer
        return scaling_loss(optimizer, runtime_config.loss_scale)

    def build_model(self) -> keras.Model:
        """Returns the model."""
        raise UsageError("has no model", key=type(self).__name__, remedy="write build_model()")

    def base_weights(self) -> str:
        """Returns what the model's frozen weights come from, such as the name or path of a preset; empty for nothing.

        Frozen weights are variables of the model that are not trainable and that no step assigns. Checkpoints do not
        contain them. A task that returns a name promises that `build_model` provides them again, with the same bits, in
        every process: then nothing is written, and a checkpoint has the name and the digest of the weights. A resumed
        run, an evaluation and an export build the model, and refuse to continue if the digest differs. Otherwise the
        frozen weights are written once, to `base/` in the run directory.

            class FineTuning(everstep.Task):
                def build_model(self):
                    backbone = keras_hub.models.Backbone.from_preset(self.task_config.preset)
                    backbone.enable_lora(rank=8)
                    …

                def base_weights(self):
                    return self.task_config.preset

        Called once, when the model is built. If other weights are loaded into the model afterwards (`init_checkpoint`),
        the name is not used.
        """
        return ""

    @abc.abstractmethod
    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the data that `params` (a DataConfig) describes: arrays, a dataset, a generator function.

        Called with `task.train_data` for training and with `task.validation_data` for evaluation.
        """

    def inputs_for(self, params: Any) -> Any:
        """Calls `build_inputs`, which may be written with or without `input_context`, which is always None."""
        takes_context = _takes(self.build_inputs, 2, "input_context")
        return self.build_inputs(params, None) if takes_context else self.build_inputs(params)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None) -> Any:
        """Returns the scalar loss; by default the sum of the losses of the model (`add_loss`, regularizers)."""
        if not aux_losses:
            remedy = "write build_losses(labels, model_outputs, aux_losses)"
            raise UsageError("has no loss", key=type(self).__name__, remedy=remedy)
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
        """Updates the metrics that a model was compiled with, as one object; `kwargs` may hold `sample_weight`."""
        compiled_metrics.update_state(labels, model_outputs, **kwargs)

    def train_step(
        self, inputs: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Trains on one batch; returns `{self.loss: loss}` and any further scalars, averaged per window.

        Batches are `x`, `(x, y)` or `(x, y, weight)`; missing labels are None. A task that learns to reproduce its
        inputs yields `(x, x)`, or calls `super().train_step((x, x), …)`.

        The loss of a compiled model is the one it was compiled with plus, if the task writes it, that of
        `build_losses`.
        """
        features, labels, weight = self.unpack(inputs)
        if model.compiled:
            batch = features, labels, weight
            return {self.loss: _train_compiled(self, batch, model, optimizer, metrics)}
        weighted = weight_argument(self, weight)

        def loss_fn() -> tuple[Any, Any]:
            outputs = model(features, training=True)
            with explain_missing_labels(features, labels):
                return self.build_losses(labels, outputs, aux_losses=model.losses, **weighted), outputs

        (loss, outputs), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        with explain_missing_labels(features, labels):
            self.process_metrics(metrics, labels, outputs, **weighted)
        return {self.loss: loss}

    def batch_weight(self, inputs: Batch) -> Any:
        """Returns how much a batch counts: what its mean loss was divided by, a scalar. None for its samples.

        A task whose loss is a mean over something else than samples, such as tokens, returns how many there are. Then
        gradient accumulation, several devices and processes, and the logs of a window weigh each batch, or part of a
        batch, by it: k small batches train as the large batch with all their tokens does.

            def batch_weight(self, inputs):
                tokens, labels = inputs
                return ops.sum(labels != IGNORED)

        Runs inside the compiled step, before it, on the same inputs. Losses of layers that are part of the loss are
        weighted with it: a regularizer, which is the same for every batch, counts once.
        """
        return None

    def unpack(self, inputs: Batch) -> tuple[Any, Any, Any]:
        """Returns features, labels and sample weights of a batch; missing ones are None.

        If a task writes `build_losses` and the batch is a single dict, the dict is also passed as labels, and the loss
        selects from it by name: `labels["next_word"]`. No other features are used as labels.
        """
        features, labels, weight = unpack(inputs)
        if labels is None and isinstance(features, Mapping) and _writes(self, "build_losses"):
            labels = features
        return features, labels, weight

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch; returning a loss is optional.

        The loss is that of `build_losses`; if a task with a compiled model does not write it, the compiled loss.
        """
        features, labels, weight = self.unpack(inputs)
        if model.compiled:
            return {self.loss: _validate_compiled(self, (features, labels, weight), model, metrics)}
        weighted = weight_argument(self, weight)
        outputs = self.inference_step(features, model)
        with explain_missing_labels(features, labels):
            loss = self.build_losses(labels, outputs, aux_losses=model.losses, **weighted)
            self.process_metrics(metrics, labels, outputs, **weighted)
        return {self.loss: loss}

    def call_validation_step(
        self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]
    ) -> Mapping[str, Any]:
        """Calls `validation_step`, which may be written with or without `metrics`.

        Raises:
          UsageError: It takes no metrics, but `build_metrics` returns some for evaluation.
        """
        if _takes(self.validation_step, 3, "metrics"):
            return self.validation_step(inputs, model, metrics)
        if metrics:
            names = ", ".join(repr(metric.name) for metric in metrics)
            raise UsageError(
                f"(inputs, model) cannot update the metrics {names}",
                key=f"{type(self).__name__}.validation_step",
                remedy="add metrics=None to its arguments, or return no metrics from build_metrics(training=False)",
            )
        return self.validation_step(inputs, model)  # type: ignore[call-arg]

    def inference_step(self, inputs: Any, model: keras.Model) -> Any:
        """Returns the model's outputs outside training."""
        return _call(model, inputs, training=False)

    def show(self, inputs: Batch, outputs: Any) -> Mapping[str, Any]:
        """Returns what trackers show of an evaluation, by name; called if `trainer.tracking.samples` is set.

        By default images with their true and predicted classes, if the task classifies images.

        Args:
          inputs: The first samples of the validation data, as arrays.
          outputs: The results of `inference_step` for them, as arrays.

        Returns:
          For each name either images, an array (n, h, w) or (n, h, w, channels); or a pair of such an array and a
          list of captions; or a list of texts.
        """
        features, labels, _ = unpack(inputs)
        return classified(features, labels, outputs)

    def show_written(self, inputs: Batch, model: keras.Model) -> Mapping[str, Any] | None:
        """Returns texts that the model writes for the first validation samples, by name, for the trackers.

        None, as here, for a task whose model writes no text: then `show` is called.
        """
        return None

    def initialize(self, model: keras.Model) -> Report | list[Any] | None:
        """Loads initial weights from `task_config.init_checkpoint`, as far as they fit the model.

        Called once, before the first step of a run that has no checkpoint. The path may be a `.keras` or `.weights.h5`
        file, a TensorFlow checkpoint, a SavedModel or another run. Step and optimizer start at zero.

        Returns:
          A report of the weights that were loaded; None without `init_checkpoint`.

        Raises:
          UsageError: The path does not exist, or nothing in it fits.
        """
        path = getattr(self.task_config, "init_checkpoint", "")
        return load_weights(model, path) if path else None

    def log_reduction(self, kind: str) -> str:
        """Returns how a window of `train` or `validation` steps reports their scalars.

        `mean` averages over samples; `last` is for steps that return the results of their metrics so far.
        """
        return "mean"

    def check_batch(self, inputs: Batch) -> None:
        """Checks data on the host before it reaches the device; raises UsageError if it is invalid.

        By default class labels are checked, if the step passes them unchanged to a sparse cross-entropy. Called with a
        whole array dataset before training, otherwise with each block of batches as it is read; a block has its batches
        stacked along a new first axis.
        """
        labels = unpack(inputs)[1]
        if self.label_classes is not None and isinstance(labels, np.ndarray):
            check_labels(labels, self.label_classes, "the labels")

    def aggregate_logs(self, state: Any, step_outputs: Mapping[str, Any]) -> Any:
        """Folds one validation step's outputs, on the host, into `state`; the first state is None.

        They have the nesting in which `validation_step` returned them, of dicts, lists and tuples. Each tensor in it is
        a tuple with one NumPy array per replica, which also has `numpy()`.
        """
        return None

    def reduce_aggregated_logs(self, aggregated_logs: Any, global_step: Any = None) -> Mapping[str, Any]:
        """Returns metrics of the state that `aggregate_logs` gathered; they are added to the logs of the evaluation.

        Called only if something was gathered. A value that is not a single number is not logged, with a warning.
        """
        return {}

    @property
    def aggregates(self) -> bool:
        """Whether the outputs of each validation step are returned to the host."""
        return type(self).aggregate_logs is not Task.aggregate_logs


def weight_argument(task: Task, weight: Any, hook: str = "build_losses") -> dict[str, Any]:
    """Returns the keyword argument for sample weights of a task's method; empty without weights.

    Raises:
      UsageError: There are weights, and the method takes none.
    """
    if weight is None:
        return {}
    known = inspect.signature(getattr(task, hook)).parameters
    if "sample_weight" not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        raise UsageError(
            f"({', '.join(known)}) takes no sample weights, but the batches (x, y, weight) have them",
            key=f"{type(task).__name__}.{hook}",
            remedy="add sample_weight=None to its arguments",
        )
    return {"sample_weight": weight}


def _writes(task: Task, hook: str) -> bool:
    """Returns whether a task overrides a method."""
    return getattr(type(task), hook) is not getattr(Task, hook)


def _takes(method: Callable[..., Any], position: int, name: str) -> bool:
    """Returns whether a method accepts this many positional arguments, or an argument of this name."""
    parameters = inspect.signature(method).parameters
    by_position = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variable = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return variable or len(by_position) >= position or name in parameters


def unpack(inputs: Batch) -> tuple[Any, Any, Any]:
    """Returns features, labels and sample weights of `x`, `(x,)`, `(x, y)` or `(x, y, weight)`.

    Missing labels and weights are None: features are never used as labels. For a model that learns to reproduce its
    inputs, batches are `(x, x)`.
    """
    alone = isinstance(inputs, SparseArray | RaggedArray)
    if isinstance(inputs, list | tuple) and 1 <= len(inputs) <= 3 and not alone:
        x, y, weight = (*inputs, None, None)[:3]
        return x, y, weight
    return inputs, None, None


@contextlib.contextmanager
def explain_missing_labels(features: Any, labels: Any) -> Iterator[None]:
    """Explains errors of a loss or of metrics that are called without labels.

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

# - The training loss is the compiled loss, including the losses of layers, plus the task's
#   `build_losses(labels, outputs, aux_losses=None)`, if the task writes it.
# - The loss of an evaluation is the task's `build_losses(labels, outputs, aux_losses=model.losses)`, if the task writes
#   it; otherwise the compiled loss.
# - The metrics of the task are updated by `process_metrics`, the compiled ones by `process_compiled_metrics`.


def _train_compiled(
    task: Any, batch: tuple[Any, Any, Any], model: keras.Model, optimizer: Any, metrics: Sequence[Any]
) -> Any:
    """Trains on one batch, (x, y, weight), as the model was compiled; returns the loss."""
    x, y, weight = batch
    weighted = weight_argument(task, weight) if _writes(task, "build_losses") else {}

    def loss_fn() -> tuple[Any, Any]:
        y_pred = _call(model, x, training=True)
        with explain_missing_labels(x, y):
            if not _writes(task, "build_losses"):
                return compiled_loss(batch, y_pred, model, training=True), y_pred
            if not has_loss(model):
                return task.build_losses(y, y_pred, aux_losses=model.losses, **weighted), y_pred
            own = task.build_losses(y, y_pred, aux_losses=None, **weighted)
            compiled = compiled_loss(batch, y_pred, model, training=True)
            return compiled + keras.ops.cast(own, compiled.dtype), y_pred

    (loss, y_pred), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
    optimizer.apply(grads, model.trainable_variables)
    with explain_missing_labels(x, y):
        _update_metrics(task, batch, y_pred, model, metrics)
    return loss


def _validate_compiled(task: Any, batch: tuple[Any, Any, Any], model: keras.Model, metrics: Sequence[Any]) -> Any:
    """Evaluates one batch; returns the loss."""
    x, y, weight = batch
    y_pred = task.inference_step(x, model)
    with explain_missing_labels(x, y):
        if _writes(task, "build_losses"):
            loss = task.build_losses(y, y_pred, aux_losses=model.losses, **weight_argument(task, weight))
        else:
            loss = compiled_loss(batch, y_pred, model, training=False)
        _update_metrics(task, batch, y_pred, model, metrics)
    return loss


def compiled_loss(batch: tuple[Any, Any, Any], y_pred: Any, model: keras.Model, training: bool) -> Any:
    """Returns the loss that the model was compiled with, plus the losses of its layers."""
    x, y, weight = batch
    return model._compute_loss(x, y, y_pred, weight, training=training)  # supports overrides without `training`


def has_loss(model: keras.Model) -> bool:
    """Returns whether the model was compiled with a loss, or overrides `compute_loss`."""
    return model.loss is not None or type(model).compute_loss is not keras.Model.compute_loss


def _overrides_metrics(model: keras.Model) -> bool:
    """Returns whether a model overrides what Keras does with its compiled metrics in a step."""
    names = ("compute_metrics", "get_metrics_result")
    return any(getattr(type(model), name) is not getattr(keras.Model, name) for name in names)


def _update_metrics(
    task: Any, batch: tuple[Any, Any, Any], y_pred: Any, model: keras.Model, metrics: Sequence[Any]
) -> None:
    """Updates the task's metrics and the compiled ones."""
    x, y, weight = batch
    compiled = {id(metric) for metric in model.metrics}
    own = [metric for metric in metrics if id(metric) not in compiled]
    if own:
        task.process_metrics(own, y, y_pred, **weight_argument(task, weight, "process_metrics"))
    if _overrides_metrics(model) and not _writes(task, "process_compiled_metrics"):
        model.compute_metrics(x, y, y_pred, sample_weight=weight)
    elif model._compile_metrics is not None:
        weighted: Mapping[str, Any] = weight_argument(task, weight, "process_compiled_metrics")
        task.process_compiled_metrics(model._compile_metrics, y, y_pred, **weighted)


def _call(model: keras.Model, x: Any, training: bool) -> Any:
    """Calls a model, with `training` only if its `call` accepts that."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def compiled_metrics(model: keras.Model, own_steps: bool) -> list[keras.Metric]:
    """Returns the metrics of a compiled model; with its own steps also the mean of its loss."""
    return [m for m in model.metrics if own_steps or m.name != "loss"]


# -- what a task shows of an evaluation by default --------------------------------------------------------------------


def classified(features: Any, labels: Any, outputs: Any) -> Mapping[str, Any]:
    """Returns images with captions of their true and predicted classes; nothing if the arrays are something else.

    Args:
      features: Images (n, h, w) or (n, h, w, 1, 3 or 4).
      labels: Class numbers (n,) or (n, 1), or one-hot labels (n, classes).
      outputs: A score for each class (n, classes); the largest is the prediction.
    """
    arrays = (features, labels, outputs)
    if not all(isinstance(array, np.ndarray) for array in arrays) or not _are_images(features):
        return {}
    if outputs.ndim != 2 or outputs.shape[1] < 2 or labels.dtype.kind not in "iuf":
        return {}
    truth = labels.argmax(axis=1) if labels.shape == outputs.shape else labels.reshape(len(labels), -1)[:, 0]
    pairs = zip(truth.tolist(), outputs.argmax(axis=1).tolist(), strict=True)
    return {"predictions": (features, [f"truth {int(one)}, prediction {other}" for one, other in pairs])}


def _are_images(array: np.ndarray) -> bool:
    channels = array.shape[3] if array.ndim == 4 else 1
    return array.ndim in (3, 4) and min(array.shape[1:3]) >= SMALLEST_IMAGE and channels in (1, 3, 4)
