"""A first batch, before training: what would fail in the first step, or after the last one, fails here."""

import tempfile
from typing import Any

import keras

from everstep.components.building import Components
from everstep.components.checks import fitting
from everstep.components.columns import with_columns
from everstep.components.evaluating import evaluator_of
from everstep.components.flows import Flow
from everstep.components.keras_trainer import compiled_model
from everstep.data import nest
from everstep.evaluation.batch import SampleBatch

_FEW = 8


def check_first_batches(components: Components, train: Flow, validation: Flow) -> None:
    """Asks a model of its own for the first validation batch, and has the answers judged.

    Seed everything again afterwards: a model was built, and samples were read.

    Raises:
      UsageError: Batches, model, loss and evaluation functions do not fit together; one line with key and file.
    """
    x, y, weight = (*next(validation.batches()), None)[:3]
    size = len(nest.flatten(y)[0])
    for flow in (train, validation):
        _check_number(flow, size)
    model = compiled_model(components)
    with components.naming("model_builder"):
        y_pred = fitting.answers(model, x)
        fitting.check_labels(model, y, y_pred)
        fitting.check_loss(model, (x, y, weight), y_pred)
        for short in sorted({flow.count % size for flow in (train, validation)} - {0}):
            fitting.check_short(model, (x, y, weight), short)
    with components.calling("model_builder", "get_class_weight"):
        fitting.check_class_weight(components.model_builder.get_class_weight(), (x, y, weight))  # type: ignore[union-attr]
    check_functions(components, x, y, y_pred)


def check_functions(components: Components, x: Any, y: Any, y_pred: Any) -> None:
    """Evaluates a few samples as a run does in its end, into a folder that is not kept.

    Raises:
      UsageError: A function fails, or returns something else than a number; names it and the sample.
    """
    with components.naming("evaluator"):
        evaluator = evaluator_of(components)
        if evaluator is None:
            return
        few = [nest.map_leaves(lambda leaf: leaf[:_FEW], part) for part in (y, _host(y_pred), x)]
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            evaluator.run(with_columns(components, iter([SampleBatch(None, *few)])), folder, "validation")


def _host(tree: Any) -> Any:
    return keras.tree.map_structure(keras.ops.convert_to_numpy, tree)


def _check_number(flow: Flow, size: int) -> None:
    """Counts the batches where they are not as many as those of one size would be: some pipelines have several."""
    if flow.n_iter != -(-flow.count // min(size, flow.count)):
        for _ in flow.batches():
            pass
