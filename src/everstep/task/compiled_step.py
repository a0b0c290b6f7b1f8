"""The steps of a compiled Keras model: its own `compute_loss` and `compute_metrics`, our gradients."""

from typing import Any

import keras

from everstep.grad import value_and_grad


def train(x: Any, y: Any, weight: Any, model: keras.Model, optimizer: keras.Optimizer) -> Any:
    """Learns from one batch as the model was compiled to; returns the loss."""

    def loss_fn() -> tuple[Any, Any]:
        y_pred = call(model, x, training=True)
        return model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=True), y_pred

    (loss, y_pred), grads = value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
    optimizer.apply(grads, model.trainable_variables)
    model.compute_metrics(x, y, y_pred, sample_weight=weight)
    return loss


def validate(x: Any, y: Any, weight: Any, model: keras.Model) -> Any:
    """Evaluates one batch; returns the loss."""
    y_pred = call(model, x, training=False)
    loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=False)
    model.compute_metrics(x, y, y_pred, sample_weight=weight)
    return loss


def call(model: keras.Model, x: Any, training: bool) -> Any:
    """Calls a model, with `training` only where its `call` knows the word."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def metrics(model: keras.Model, own_steps: bool) -> list[keras.Metric]:
    """Returns the metrics of a compiled model; the mean of its loss is one where its own steps keep it."""
    return [m for m in model.metrics if own_steps or m.name != "loss"]
