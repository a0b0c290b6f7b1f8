"""The steps of several tasks: one of them, chosen at run time, or all on the sum of their losses."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from everstep.data import nest
from everstep.errors import UsageError
from everstep.grad import value_and_grad
from everstep.multitask.metrics import MultiTaskMetrics
from everstep.task.task import Task
from everstep.task.unpack import labels_explained
from everstep.types import Batch


def train_one(
    name: str, task: Task, batch: Batch, model: keras.Model, optimizer: keras.Optimizer, metrics: MultiTaskMetrics
) -> Any:
    """Runs a task's own train step; returns its loss."""
    logs = task.train_step(batch, model, optimizer, metrics.own[name])
    if task.loss not in logs:
        raise UsageError(f"task {name!r}: train_step returned no {task.loss!r}: return {{self.loss: loss}}")
    metrics.add(name, logs, task.loss, size(batch))
    return ops.cast(logs[task.loss], "float32")


def validate_one(name: str, task: Task, batch: Batch, model: keras.Model, metrics: MultiTaskMetrics) -> None:
    """Runs a task's own validation step."""
    logs = task.validation_step(batch, model, metrics.own[name]) or {}
    metrics.add(name, logs, task.loss, size(batch))


def train_jointly(
    tasks: Mapping[str, Task],
    weights: Mapping[str, float],
    batches: Mapping[str, Batch],
    models: Mapping[str, keras.Model],
    optimizer: keras.Optimizer,
    metrics: MultiTaskMetrics,
) -> Any:
    """Learns from a batch of every task at once; returns the weighted sum of their losses.

    A task's loss is what it would be by itself, the losses of its model's layers included.
    """
    parts = {name: task.unpack(batches[name]) for name, task in tasks.items()}
    weighted = {name: task._weighted(parts[name][2]) for name, task in tasks.items()}

    def loss_fn() -> tuple[Any, tuple[dict, dict]]:
        losses, outputs = {}, {}
        for name, task in tasks.items():
            features, labels, _ = parts[name]
            outputs[name] = models[name](features, training=True)
            own = models[name].losses
            with labels_explained(features, labels):
                losses[name] = task.build_losses(labels, outputs[name], aux_losses=own, **weighted[name])
        total = sum(ops.cast(loss, "float32") * weights[name] for name, loss in losses.items())
        return total, (losses, outputs)

    variables = _union(models[name].trainable_variables for name in tasks)
    (total, (losses, outputs)), grads = value_and_grad(loss_fn, variables, optimizer=optimizer)
    optimizer.apply(grads, variables)
    for name, task in tasks.items():
        with labels_explained(*parts[name][:2]):
            task.process_metrics(metrics.own[name], parts[name][1], outputs[name], **weighted[name])
        metrics.add(name, {task.loss: losses[name]}, task.loss, size(batches[name]))
    return total


def size(batch: Batch) -> int:
    """Returns how many samples a batch has."""
    return int(nest.flatten(batch)[0].shape[0])


def _union(groups: Any) -> list[keras.Variable]:
    return list({id(variable): variable for group in groups for variable in group}.values())
