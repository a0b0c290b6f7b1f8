"""Whether data, model, loss and evaluation fit together, tried on one batch before anything is trained."""

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.data import class_weighted, nest
from everstep.errors import UsageError
from everstep.evaluation import SampleBatch
from everstep.projects.components.building import Components
from everstep.projects.components.data_splits import DataSplit, require_weights, weighing
from everstep.projects.components.error_context import describe_error
from everstep.projects.components.evaluation import create_evaluator, with_columns
from everstep.projects.components.keras_trainer import compiled_model
from everstep.projects.components.losses import LossFacts, loss_facts, with_axes
from everstep.task import compiled_loss, has_loss

_FEW = 8


def check_first_batches(components: Components, train: DataSplit, validation: DataSplit, test: DataSplit) -> None:
    """Passes the first validation batch through a new model, its loss and the evaluation functions.

    Labels of all splits have to be numbers.

    Seed everything again afterwards: a model was built, and samples were read.

    Raises:
      UsageError: They do not fit together; names the key, the file and the reason.
    """
    x, y, weight = (*next(validation.batches()), None)[:3]
    size = len(nest.flatten(y)[0])
    for split in (train, validation):
        if split.n_iter != -(-split.count // min(size, split.count)):  # batches of several sizes, or a wrong number
            for _ in split.batches():
                pass
    if weight is not None:
        with components.naming(weighing(components)):
            for weights in nest.flatten(weight):
                require_weights(weights, "the first validation batch")
    model = compiled_model(components)
    with components.naming("preprocessor"):
        for labels in (y, *(next(split.batches())[1] for split in (train, test))):
            require_numbers(model, labels)
    with components.naming("model_builder"):
        y_pred = predict(model, x)
        check_labels(model, y, y_pred)
        compute_loss(model, (x, y, weight), y_pred)
        for short in sorted({split.count % size for split in (train, validation)} - {0}):
            check_short_batch(model, (x, y, weight), short)
    with components.calling("model_builder", "get_class_weight"):
        if class_weight := components.model_builder.get_class_weight():  # type: ignore[union-attr]
            require_class_weights(class_weight)
            class_weighted(class_weight)((x, y, weight))
    check_functions(components, x, y, y_pred)


def check_functions(components: Components, x: Any, y: Any, y_pred: Any) -> None:
    """Evaluates a few samples as the end of a run does, into a temporary folder.

    Raises:
      UsageError: A function fails, or returns no number; names it and the sample.
    """
    with components.naming("evaluator"):
        evaluator = create_evaluator(components)
        if evaluator is None:
            return
        host = keras.tree.map_structure(keras.ops.convert_to_numpy, y_pred)
        few = [nest.map_leaves(lambda leaf: leaf[:_FEW], part) for part in (y, host, x)]
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            evaluator.run(with_columns(components, iter([SampleBatch(None, *few)])), folder, "validation")


def predict(model: keras.Model, x: Any) -> Any:
    """Returns the model's outputs for a batch of inputs, unchanged.

    Raises:
      UsageError: The model does not take such inputs.
    """
    declared = [] if isinstance(x, dict) else list(getattr(model, "inputs", None) or ())
    leaves = keras.tree.flatten(x)
    if declared and len(declared) != len(leaves):
        raise UsageError(f"the model has {len(declared)} inputs, but x has {len(leaves)} arrays: {shapes(x)}")
    for spec, leaf in zip(declared, leaves, strict=bool(declared)):
        if not _takes(tuple(spec.shape), np.shape(leaf)):
            raise UsageError(
                f"the model takes x of shape {tuple(spec.shape)}, but a batch has {np.shape(leaf)}",
                remedy="change the preprocessor or keras.Input",
            )
    try:
        return model(keras.tree.map_structure(keras.ops.convert_to_tensor, x), training=False)
    except Exception as error:
        raise UsageError(f"the model fails on x of shape {shapes(x)}: {describe_error(error)}") from error


def require_class_weights(class_weight: Mapping[int, float]) -> None:
    """Checks the weights of classes.

    Raises:
      UsageError: One is no finite number of at least 0.
    """
    for label, weight in class_weight.items():
        if not isinstance(weight, int | float | np.number) or not 0 <= weight < np.inf:
            raise UsageError(
                f"has the weight {weight!r} for class {label}, but weights must be at least 0", key="get_class_weight()"
            )


def require_numbers(model: keras.Model, y: Any) -> None:
    """Checks that labels are numbers, if the model has a loss: Keras compares no text.

    Raises:
      UsageError: Some are text.
    """
    for leaf in map(np.asarray, nest.flatten(y)):
        if has_loss(model) and leaf.dtype.kind not in "biufc":
            raise UsageError(
                "labels must be numbers",
                key="label_preprocess()",
                received=leaf.reshape(-1).tolist()[0],
                remedy="return the number of the class, such as ['cat', 'dog'].index(label)",
            )


def check_labels(model: keras.Model, y: Any, y_pred: Any) -> str:
    """Checks that the model's loss can compare labels with outputs; returns their shapes in words.

    Raises:
      UsageError: It cannot; names the shapes, or the label that is out of range.
    """
    labels = [np.asarray(leaf) for leaf in keras.tree.flatten(y)]
    outputs = [keras.ops.convert_to_numpy(leaf) for leaf in keras.tree.flatten(y_pred)]
    losses = loss_facts(model, len(outputs))
    if len(labels) == len(outputs) == len(losses):
        for facts, label, output in zip(losses, labels, outputs, strict=True):
            _check_pair(facts, label, output)
    return f"labels {shapes(y)}, outputs {shapes(y_pred)}"


def check_label_range(model: keras.Model, y_pred: Any, ranges: Sequence[tuple[float, float]], split: str) -> None:
    """Checks that all labels of a split are classes; `ranges` has the smallest and the largest of each part.

    Raises:
      UsageError: One is not; names it.
    """
    outputs = keras.tree.flatten(y_pred)
    for facts, output, (least, most) in zip(loss_facts(model, len(outputs)), outputs, ranges, strict=False):
        if facts.classes_by_number and facts.ignored is None and (least < 0 or most >= output.shape[-1]):
            raise _no_class(f"a {split} label is {least if least < 0 else most:g}", output.shape[-1])


def compute_loss(model: keras.Model, batch: tuple[Any, Any, Any], y_pred: Any) -> float | None:
    """Returns the loss of a batch; None for a model that computes it in a step of its own.

    Raises:
      UsageError: It cannot be computed.
    """
    if not has_loss(model):
        return None
    tensors = with_axes(model, nest.map_leaves(keras.ops.convert_to_tensor, batch))
    try:
        loss = compiled_loss(tensors, y_pred, model, training=False)
        return float(keras.ops.convert_to_numpy(loss))
    except Exception as error:
        found = f"labels of shape {shapes(batch[1])} and outputs of shape {shapes(y_pred)}"
        raise UsageError(f"the loss fails on {found}: {describe_error(error)}") from error


def check_short_batch(model: keras.Model, batch: tuple[Any, Any, Any], size: int) -> None:
    """Checks that model and loss take fewer samples, too: the last batch of an epoch may be short.

    Raises:
      UsageError: The first `size` samples of the batch fail.
    """
    x, y, weight = (nest.map_leaves(lambda leaf: leaf[:size], part) for part in batch)
    try:
        compute_loss(model, (x, y, weight), predict(model, x))
    except UsageError as error:
        raise UsageError(f"a batch of {size}, as the last one of an epoch: {error}") from error


def shapes(tree: Any) -> str:
    """Returns the shapes of a nesting in words; a single array's shape alone."""
    found = keras.tree.map_structure(lambda leaf: tuple(np.shape(leaf)), tree)
    return str(found).replace("'", "")


def _takes(declared: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    """Whether Keras takes the shape; it adds or removes a last axis of 1 itself."""
    if len(shape) == len(declared) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) == len(declared) - 1 and declared[-1] == 1:
        shape = (*shape, 1)
    return len(shape) == len(declared) and all(want in (None, have) for want, have in zip(declared, shape, strict=True))


def _check_pair(facts: LossFacts, label: np.ndarray, output: np.ndarray) -> None:
    if len(label) != len(output):
        raise UsageError(f"the model returned {len(output)} outputs for a batch of {len(label)}")
    if not facts.classes_by_number:
        if facts.compares_alike and _squeezed(label.shape) != _squeezed(output.shape):
            raise UsageError(
                f"{facts.name} compares labels and outputs of the same shape, but labels have {label.shape} and "
                f"outputs {output.shape}",
                remedy=facts.hint(label, output),
            )
        return
    numbers = label[..., 0] if label.ndim == output.ndim and label.shape[-1] == 1 else label
    if numbers.shape != output.shape[:-1]:
        raise UsageError(
            f"{facts.name} takes the number of a class for every output, so labels of shape {output.shape[:-1]} for "
            f"outputs {output.shape}, but labels have {label.shape}",
            remedy=facts.hint(label, output),
        )
    classes = output.shape[-1]
    wrong = (numbers < 0) | (numbers >= classes) | (numbers != np.floor(numbers))
    wrong &= numbers != facts.ignored if facts.ignored is not None else True
    if wrong.any():
        raise _no_class(f"the label {numbers[wrong].flat[0]} is no class", classes)


def _no_class(found: str, classes: int) -> UsageError:
    return UsageError(f"{found}: the model has {classes} classes, so labels are whole numbers from 0 to {classes - 1}")


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape
