"""The model: whether it takes the batches, learns from them, and comes back from its export as it was."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from everstep.components.checks import fitting
from everstep.components.checks.losses import loss_facts
from everstep.components.checks.outcome import Doubt, NotNeeded
from everstep.components.checks.subject import TRAINED, Subject
from everstep.components.exporting import input_dtypes
from everstep.components.keras_trainer import compiled_model
from everstep.components.redirected import redirected
from everstep.components.run_folder import RunFolder
from everstep.components.served import SAVED_MODEL, open_served, write_served
from everstep.errors import UsageError, kind_of, nearest


def model(subject: Subject) -> str:
    """There is a compiled Keras model."""
    _require_keras(subject)
    made = subject.model = compiled_model(subject.components)
    size = f"{made.count_params()} parameters" if made.built else "not built before its first batch"
    return f"{type(made).__name__} {made.name!r} is compiled: {size}"


def inputs(subject: Subject) -> str:
    """The model answers a batch of training and of validation data."""
    _require_keras(subject)
    for split in TRAINED:
        x, _, _ = subject.few(split)
        subject.y_pred = fitting.answers(subject.model, x)
    wrong = [leaf for leaf in keras.tree.flatten(subject.y_pred) if not np.isfinite(_array(leaf)).all()]
    if wrong:
        raise UsageError(f"the model's answers to x of shape {fitting.shapes(x)} are not finite")
    return f"takes x {fitting.shapes(x)} and answers {fitting.shapes(subject.y_pred)}"


def labels(subject: Subject) -> str:
    """Labels fit the model's outputs and its loss, all labels of the first batches."""
    _require_keras(subject)
    for split in TRAINED:
        x, y, weight = subject.batches[split]
        y_pred = fitting.answers(subject.model, x)
        found = fitting.check_labels(subject.model, y, y_pred)
        loss = fitting.check_loss(subject.model, (x, y, weight), y_pred)
        if loss is not None and not np.isfinite(loss):
            raise UsageError(f"the loss of a {split} batch is {loss}: look at labels, weights and outputs")
        fitting.check_range(subject.model, y_pred, subject.label_ranges[split], split)
        size = len(keras.tree.flatten(y)[0])
        if short := subject.samples[split].count % size or size - 1:  # another size than masks may have
            fitting.check_short(subject.model, (x, y, weight), short)
    return f"{found} fit {_loss_name(subject.model)}{'' if loss is None else f', which is {loss:.4g} untrained'}"


def probabilities(subject: Subject) -> str:
    """A cross-entropy gets what it expects, probabilities or logits."""
    _require_keras(subject)
    outputs = [_array(leaf) for leaf in keras.tree.flatten(subject.y_pred)]
    facts = loss_facts(subject.model, len(outputs))
    judged = [(one, out) for one, out in zip(facts, outputs, strict=False) if one.takes_probabilities]
    if not judged:
        raise NotNeeded("the loss is no cross-entropy of Keras's own")
    for one, out in judged:
        activation = getattr(getattr(subject.model.layers[-1], "activation", None), "__name__", "")
        if one.from_logits and activation in ("softmax", "sigmoid"):
            raise Doubt(f"{one.name} has from_logits=True, but the last layer ends in {activation}: use one of them")
        if not one.from_logits and (out.min() < -1e-5 or out.max() > 1 + 1e-5):
            raise Doubt(f"{one.name} expects probabilities, but outputs go from {out.min():.3g} to {out.max():.3g}")
    return f"{judged[0][0].name} gets {'logits' if judged[0][0].from_logits else 'probabilities'}"


def callbacks(subject: Subject) -> str:
    """Callbacks are Keras callbacks, and watch metrics that there are."""
    _require_keras(subject)
    components = subject.components
    with components.calling("model_builder", "get_callbacks"):
        given = components.model_builder.get_callbacks()  # type: ignore[union-attr]
    folder = RunFolder(subject.scratch, subject.run_name)
    folder.path.mkdir(parents=True, exist_ok=True)
    listed = redirected(given, folder)
    for callback in listed:
        watched = getattr(callback, "monitor", None)
        if isinstance(watched, str) and subject.names and watched not in subject.names:
            raise Doubt(f"{type(callback).__name__} watches {watched!r}; {nearest(watched, subject.names)}")
    names = ", ".join(type(callback).__name__ for callback in listed)
    return f"{len(listed)} callbacks{f': {names}' if names else ''}"


def class_weight(subject: Subject) -> str:
    """Class weights are finite numbers of at least 0 for classes that there are."""
    _require_keras(subject)
    components = subject.components
    with components.calling("model_builder", "get_class_weight"):
        given = components.model_builder.get_class_weight()  # type: ignore[union-attr]
    if given is None:
        raise NotNeeded("get_class_weight() returns None")
    if not isinstance(given, Mapping):
        raise UsageError(f"get_class_weight() returned {kind_of(given)}, expected a dict from class to weight")
    if len(keras.tree.flatten(subject.y_pred)) > 1:
        fitting.check_class_weight(given, subject.batches["training"])
    classes = _array(keras.tree.flatten(subject.y_pred)[0]).shape[-1]
    known = classes if classes > 1 else 2
    for label, weight in given.items():
        if not isinstance(label, int | np.integer) or not 0 <= label < known:
            raise UsageError(f"get_class_weight() has the class {label!r}: classes are 0 to {known - 1}")
        if not isinstance(weight, int | float | np.number) or not 0 <= weight < np.inf:
            raise UsageError(f"get_class_weight() gives class {label} the weight {weight!r}: it is at least 0")
    fitting.check_class_weight(given, subject.batches["training"])
    return f"{len(given)} of {known} classes have a weight"


def export_metric(subject: Subject) -> str:
    """The metric that chooses the epoch to export is one that an epoch has."""
    _require_keras(subject)
    metric = subject.opened.config.export.metric
    if metric not in subject.names:
        place = subject.opened.config.place("export.metric")
        known = ", ".join(subject.names)
        raise UsageError(f"export.metric: there is no metric {metric!r} (an epoch has: {known}) (from {place})")
    if metric in subject.of_one_batch:
        raise Doubt(
            f"test_step returns {metric.removeprefix('val_')!r} of the last batch only, and export.metric is chosen by "
            f"it: keep a keras.metrics.Mean, and return its result()"
        )
    return f"the best epoch is that with the {subject.opened.config.export.mode} of {metric}"


def export(subject: Subject) -> str:
    """The model, untrained, comes back from its export with the same answers, whatever the size of a batch."""
    _require_keras(subject)
    x, _, _ = subject.few("validation")
    fresh = compiled_model(subject.components)
    expected = fitting.answers(fresh, x)
    name = write_served(fresh, subject.scratch, x)
    one = keras.tree.map_structure(lambda leaf: leaf[:1], x)
    again = open_served(subject.scratch / name, input_dtypes(fresh, x)).predict(one)
    pairs = zip(keras.tree.flatten(expected), keras.tree.flatten(again), strict=True)
    difference = max(float(np.max(np.abs(_array(a)[:1] - b))) for a, b in pairs)
    form = "SavedModel" if name == SAVED_MODEL else "PyTorch program"
    return f"the untrained model comes back from its {form}; largest difference {difference:.1e}"


def _require_keras(subject: Subject) -> None:
    if subject.is_generic:
        raise NotNeeded


def _array(leaf: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(leaf))


def _loss_name(model: keras.Model) -> str:
    facts = loss_facts(model, 1)
    return facts[0].name if facts else "the model's own loss"
