"""Whether data and model fit: the inputs to the model, the labels to its outputs and its loss."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from everstep.components.blame import reason
from everstep.components.checks.losses import LossFacts, loss_facts
from everstep.components.sample_weights import with_axes
from everstep.data import nest
from everstep.data.mapped import class_weighted
from everstep.errors import UsageError
from everstep.task import compiled_step


def answers(model: keras.Model, x: Any) -> Any:
    """Returns the model's answers to a batch of inputs, as it gives them.

    Raises:
      UsageError: The inputs are not those that the model takes.
    """
    _check_inputs(model, x)
    try:
        return model(keras.tree.map_structure(keras.ops.convert_to_tensor, x), training=False)
    except Exception as error:
        raise UsageError(f"the model fails on x of shape {shapes(x)}: {reason(error)}") from error


def check_labels(model: keras.Model, y: Any, y_pred: Any) -> str:
    """Refuses labels that the model's loss cannot compare with its outputs; returns what was found, in words.

    Raises:
      UsageError: Names the shapes, or the label that is out of range.
    """
    labels = [np.asarray(leaf) for leaf in keras.tree.flatten(y)]
    outputs = [keras.ops.convert_to_numpy(leaf) for leaf in keras.tree.flatten(y_pred)]
    losses = loss_facts(model, len(outputs))
    if len(labels) == len(outputs) == len(losses):
        for facts, label, output in zip(losses, labels, outputs, strict=True):
            _check_pair(facts, label, output)
    return f"labels {shapes(y)}, outputs {shapes(y_pred)}"


def check_range(model: keras.Model, y_pred: Any, ranges: Sequence[tuple[float, float]], split: str) -> None:
    """Refuses labels that are no classes, anywhere in a split; `ranges` has the smallest and the largest of each part.

    Raises:
      UsageError: Names the label.
    """
    outputs = keras.tree.flatten(y_pred)
    for facts, output, (least, most) in zip(loss_facts(model, len(outputs)), outputs, ranges, strict=False):
        if facts.classes_by_number and facts.ignored is None and (least < 0 or most >= output.shape[-1]):
            wrong = least if least < 0 else most
            raise UsageError(
                f"a {split} label is {wrong:g}: the model has {output.shape[-1]} classes, so labels are whole numbers "
                f"from 0 to {output.shape[-1] - 1}"
            )


def check_loss(model: keras.Model, batch: tuple[Any, Any, Any], y_pred: Any) -> float | None:
    """Returns the loss of a batch; None for a model that computes it in a step of its own.

    Raises:
      UsageError: It cannot be computed.
    """
    if not compiled_step.has_loss(model):
        return None
    tensors = with_axes(model, nest.map_leaves(keras.ops.convert_to_tensor, batch))
    try:
        loss = compiled_step.compiled_loss(tensors, y_pred, model, training=False)
        return float(keras.ops.convert_to_numpy(loss))
    except Exception as error:
        found = f"labels of shape {shapes(batch[1])} and outputs of shape {shapes(y_pred)}"
        raise UsageError(f"the loss fails on {found}: {reason(error)}") from error


def check_short(model: keras.Model, batch: tuple[Any, Any, Any], size: int) -> None:
    """Refuses a model or a loss that fits whole batches alone: the last one of an epoch may be short.

    Raises:
      UsageError: The first `size` samples of the batch fail.
    """
    x, y, weight = (nest.map_leaves(lambda leaf: leaf[:size], part) for part in batch)
    try:
        check_loss(model, (x, y, weight), answers(model, x))
    except UsageError as error:
        raise UsageError(f"a batch of {size}, as the last one of an epoch: {error}") from error


def check_class_weight(class_weight: Any, batch: tuple[Any, Any, Any]) -> None:
    """Refuses class weights for labels that have no classes.

    Raises:
      UsageError: There are several outputs, or labels of which each is no class.
    """
    if class_weight:
        class_weighted(class_weight)(batch)


def shapes(tree: Any) -> str:
    """Returns the shapes of a nesting in words: of one array just that."""
    found = keras.tree.map_structure(lambda leaf: tuple(np.shape(leaf)), tree)
    return str(found).replace("'", "")


def _check_inputs(model: keras.Model, x: Any) -> None:
    """Compares shapes with those that the model declares, where both are in a plain order."""
    declared = [] if isinstance(x, dict) else list(getattr(model, "inputs", None) or ())
    leaves = keras.tree.flatten(x)
    if declared and len(declared) != len(leaves):
        raise UsageError(f"the model has {len(declared)} inputs, but x has {len(leaves)} arrays: {shapes(x)}")
    for spec, leaf in zip(declared, leaves, strict=bool(declared)):
        if not _fits(tuple(spec.shape), np.shape(leaf)):
            raise UsageError(
                f"the model takes x of shape {tuple(spec.shape)}, but a batch has {np.shape(leaf)}: change the "
                "preprocessor or keras.Input"
            )


def _fits(declared: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    """Tells whether Keras takes the shape; it adds or removes a last axis of 1 by itself."""
    if len(shape) == len(declared) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) == len(declared) - 1 and declared[-1] == 1:
        shape = (*shape, 1)
    return len(shape) == len(declared) and all(want in (None, have) for want, have in zip(declared, shape, strict=True))


def _check_pair(facts: LossFacts, label: np.ndarray, output: np.ndarray) -> None:
    if len(label) != len(output):
        raise UsageError(f"the model gave {len(output)} answers to a batch of {len(label)}")
    if facts.classes_by_number:
        _check_classes(facts, label, output)
    elif facts.compares_alike and _squeezed(label.shape) != _squeezed(output.shape):
        raise UsageError(
            f"{facts.name} compares labels and outputs of one shape, but labels have {label.shape} and outputs "
            f"{output.shape}{facts.hint(label, output)}"
        )


def _check_classes(facts: LossFacts, label: np.ndarray, output: np.ndarray) -> None:
    classes = output.shape[-1]
    numbers = label[..., 0] if label.ndim == output.ndim and label.shape[-1] == 1 else label
    if numbers.shape != output.shape[:-1]:
        raise UsageError(
            f"{facts.name} takes the number of a class for every answer, so labels of shape {output.shape[:-1]} for "
            f"outputs {output.shape}; received {label.shape}{facts.hint(label, output)}"
        )
    wrong = (numbers < 0) | (numbers >= classes) | (numbers != np.floor(numbers))
    wrong &= numbers != facts.ignored if facts.ignored is not None else True
    if wrong.any():
        raise UsageError(
            f"the label {numbers[wrong].flat[0]} is no class: the model has {classes}, so labels are whole numbers "
            f"from 0 to {classes - 1}"
        )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape
