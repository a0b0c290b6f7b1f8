"""The default steps where the model is compiled: its own loss and metrics, and what the task adds to them.

- The loss to learn from is the compiled one, with what the model's layers add, and on top of it the task's
  `build_losses(labels, outputs, aux_losses=None)`, where it writes one.
- The loss of an evaluation is the task's `build_losses(labels, outputs, aux_losses=model.losses)` alone, where it
  writes one; else the compiled loss.
- The task's metrics go through `process_metrics`, the compiled ones through `process_compiled_metrics`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from everstep.grad import value_and_grad
from everstep.task.unpack import labels_explained


def train(task: Any, batch: tuple[Any, Any, Any], model: keras.Model, optimizer: Any, metrics: Sequence[Any]) -> Any:
    """Learns from one batch, (x, y, weight), as the model was compiled to; returns the loss."""
    x, y, weight = batch
    weighted = task._weighted(weight) if task._writes("build_losses") else {}

    def loss_fn() -> tuple[Any, Any]:
        y_pred = call(model, x, training=True)
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
        update_metrics(task, batch, y_pred, model, metrics)
    return loss


def validate(task: Any, batch: tuple[Any, Any, Any], model: keras.Model, metrics: Sequence[Any]) -> Any:
    """Evaluates one batch; returns the loss."""
    x, y, weight = batch
    y_pred = task.inference_step(x, model)
    with labels_explained(x, y):
        if task._writes("build_losses"):
            loss = task.build_losses(y, y_pred, aux_losses=model.losses, **task._weighted(weight))
        else:
            loss = compiled_loss(batch, y_pred, model, training=False)
        update_metrics(task, batch, y_pred, model, metrics)
    return loss


def compiled_loss(batch: tuple[Any, Any, Any], y_pred: Any, model: keras.Model, training: bool) -> Any:
    """Returns the loss that the model was compiled with, and the model's own."""
    x, y, weight = batch
    return model._compute_loss(x, y, y_pred, weight, training=training)  # which knows of overrides without `training`


def has_loss(model: keras.Model) -> bool:
    """Tells whether the model was compiled with a loss, or computes one in a way of its own."""
    return model.loss is not None or type(model).compute_loss is not keras.Model.compute_loss


def update_metrics(
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


def call(model: keras.Model, x: Any, training: bool) -> Any:
    """Calls a model, with `training` only where its `call` knows the word."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def metrics(model: keras.Model, own_steps: bool) -> list[keras.Metric]:
    """Returns the metrics of a compiled model; the mean of its loss is one where its own steps keep it."""
    return [m for m in model.metrics if own_steps or m.name != "loss"]
