"""`Task`: what is learned. The user's class; the loop around it is not its business."""

import abc
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.data.labels import check_labels
from everstep.errors import UsageError
from everstep.grad import value_and_grad
from everstep.optim.build import build as build_optimizer
from everstep.optim.loss_scale import scaling_loss
from everstep.task import compiled_step
from everstep.task.initial.load import load as load_weights
from everstep.task.initial.report import Report
from everstep.task.showing import classified
from everstep.task.unpack import labels_explained
from everstep.task.unpack import unpack as unpack
from everstep.types import Batch


def _takes(method: Callable[..., Any], position: int, name: str) -> bool:
    """Tells whether a method can be called with so many arguments by position, or by this name."""
    parameters = inspect.signature(method).parameters
    by_position = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variable = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    return variable or len(by_position) >= position or name in parameters


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
            raise UsageError(f"dp_config: received {dp_config!r}, but differentially private training is not offered")
        optimizer = build_optimizer(optimizer_config)
        if runtime_config is None or runtime_config.mixed_precision_dtype != "float16":
            return optimizer
        return scaling_loss(optimizer, runtime_config.loss_scale)

    def build_model(self) -> keras.Model:
        """Returns the model."""
        raise UsageError(f"task {self.name!r} has no model: write build_model()")

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
            raise UsageError(f"task {self.name!r} has no loss: write build_losses(labels, model_outputs, aux_losses)")
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
            return {self.loss: compiled_step.train(self, batch, model, optimizer, metrics)}
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
                f"{type(self).__name__}.{hook}({', '.join(known)}) knows no sample weights, but the batches "
                "(x, y, weight) have them: add sample_weight=None to its arguments"
            )
        return {"sample_weight": weight}

    def _writes(self, hook: str) -> bool:
        """Tells whether a method is the task's own."""
        return getattr(type(self), hook) is not getattr(Task, hook)

    def validation_step(self, inputs: Batch, model: keras.Model, metrics: Sequence[keras.Metric]) -> Mapping[str, Any]:
        """Evaluates one batch; a loss is optional here.

        Its loss is that of `build_losses`, alone; of a compiled model whose task writes none, the compiled one.
        """
        features, labels, weight = self.unpack(inputs)
        if model.compiled:
            return {self.loss: compiled_step.validate(self, (features, labels, weight), model, metrics)}
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
                f"{type(self).__name__}.validation_step(inputs, model) cannot update the metrics {names}: add "
                "metrics=None to its arguments, or return none of them from build_metrics(training=False)"
            )
        return self.validation_step(inputs, model)  # type: ignore[call-arg]

    def inference_step(self, inputs: Any, model: keras.Model) -> Any:
        """Returns the model's outputs outside training."""
        return compiled_step.call(model, inputs, training=False)

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
