"""Whether the model learns: a step changes it, and a single batch can be learned by heart."""

from typing import Any

import keras
import numpy as np

from everstep.components.checks.outcome import Doubt, NotNeeded
from everstep.components.checks.subject import Subject
from everstep.components.keras_trainer import compiled_model
from everstep.components.own_metrics import has_own_test_step, of_one_batch
from everstep.components.sample_weights import with_axes
from everstep.data.mapped import class_weighted
from everstep.errors import UsageError

STEPS = 100
"""How often a batch is learned from, at most."""
_HALF, _CLEARLY = 0.5, 0.9


def step(subject: Subject) -> str:
    """One step gives a finite loss and changes the weights; on the way, the metrics of an epoch become known."""
    _require_keras(subject)
    model = subject.model = compiled_model(subject.components)
    batch = _batch(subject, model)
    model(keras.tree.map_structure(keras.ops.convert_to_tensor, batch[0]))
    before = [np.array(keras.ops.convert_to_numpy(each)) for each in model.trainable_variables]
    logs = _learn(model, batch)
    tested = model.test_on_batch(batch[0], batch[1], sample_weight=batch[2], return_dict=True)
    subject.names = [*logs, *(f"val_{name}" for name in tested)]
    if has_own_test_step(model):
        subject.of_one_batch = {f"val_{name}" for name in of_one_batch(model, tested)}
    subject.losses = [_loss(logs)]
    after = [np.array(keras.ops.convert_to_numpy(each)) for each in model.trainable_variables]
    changed = sum(not np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    if not all(np.isfinite(each).all() for each in after) or not np.isfinite(subject.losses[0]):
        raise UsageError(f"after one step with the loss {subject.losses[0]:.4g}, not all weights are finite numbers")
    if not changed:
        raise UsageError("one step changes no weight: is everything frozen, or the learning rate 0?")
    return f"one step changes {changed} of {len(before)} trainable weights"


def overfit(subject: Subject) -> str:
    """The loss of one batch falls clearly when it is learned from again and again."""
    _require_keras(subject)
    batch = _batch(subject, subject.model)
    losses = subject.losses = _repeated(subject.model, batch, subject.losses)
    told = f"the loss of one batch falls from {losses[0]:.4g} to {_last(losses):.4g} in {len(losses)} steps"
    if _falls(losses):
        return told
    others = _with_another_optimizer(subject, batch)
    if _falls(others):
        rate = f"{others[0]:.4g} to {_last(others):.4g}"
        raise Doubt(f"{told}; with Adam(0.001) it falls from {rate}: look at the optimizer and its learning rate")
    raise UsageError(
        f"one batch cannot be learned: its loss goes from {losses[0]:.4g} to {_last(losses):.4g} in {len(losses)} "
        "steps, and Adam(0.001) does no better: do labels belong to their inputs?"
    )


def _with_another_optimizer(subject: Subject, batch: Any) -> list[float]:
    model = compiled_model(subject.components)
    model.optimizer = keras.optimizers.Adam(0.001)
    return _repeated(model, batch, [])


def _repeated(model: keras.Model, batch: Any, losses: list[float]) -> list[float]:
    """Learns from a batch until its loss is half of what it was, or often enough; returns all losses."""
    losses = list(losses)
    while len(losses) < STEPS and not (len(losses) >= 5 and _last(losses) <= _HALF * losses[0]):
        losses.append(_loss(_learn(model, batch)))
    return losses


def _falls(losses: list[float]) -> bool:
    fall = losses[0] - _last(losses)
    return bool(np.isfinite(fall) and fall >= (1 - _CLEARLY) * abs(losses[0]) and fall > 0)


def _last(losses: list[float]) -> float:
    """Returns the mean of the last losses: dropout makes single ones noisy."""
    return float(np.mean(losses[-5:]))


def _learn(model: keras.Model, batch: Any) -> dict[str, Any]:
    x, y, weight = batch
    logs = model.train_on_batch(x, y, sample_weight=weight, return_dict=True)
    model.reset_metrics()
    return dict(logs)


def _loss(logs: dict[str, Any]) -> float:
    if "loss" not in logs:
        raise NotNeeded("the model's own train_step tells no loss")
    return float(logs["loss"])


def _batch(subject: Subject, model: keras.Model) -> Any:
    """Returns the first training batch, weighted as in training."""
    batch = subject.batches["training"]
    weight = subject.components.model_builder.get_class_weight()  # type: ignore[union-attr]
    return with_axes(model, class_weighted(weight)(batch) if weight else batch)


def _require_keras(subject: Subject) -> None:
    if subject.is_generic:
        raise NotNeeded
