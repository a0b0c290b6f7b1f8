"""Checks of the model: whether it takes the batches, learns from them, can be exported and evaluated."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from everstep.data import class_weighted
from everstep.errors import Problem, UsageError, kind_of, nearest, problems_under
from everstep.evaluation import outcome_of, sample_metrics, scores
from everstep.projects.components import first_batch
from everstep.projects.components.checks.runner import TRAINED, Skip, Subject, Warn
from everstep.projects.components.config import origin_of
from everstep.projects.components.data_splits import create_split
from everstep.projects.components.evaluation import evaluation_kind
from everstep.projects.components.exported_model import SAVED_MODEL, input_dtypes, load_exported, write_model
from everstep.projects.components.generic_trainer import endless, load_estimator, save_estimator
from everstep.projects.components.keras_trainer import compiled_model, into_run_folder
from everstep.projects.components.losses import loss_facts, with_axes
from everstep.projects.components.model_metrics import has_own_test_step, of_one_batch
from everstep.projects.components.run_folder import RunFolder

MAX_STEPS = 100
"""How often one batch is learned from, at most."""
_MAX_BATCHES = 16  # that an estimator is fitted to
_HALF, _CLEARLY = 0.5, 0.9


def model(subject: Subject) -> str:
    """There is a compiled Keras model."""
    subject.require_keras()
    new = subject.model = compiled_model(subject.components)
    size = f"{new.count_params()} parameters" if new.built else "not built before its first batch"
    return f"{type(new).__name__} {new.name!r} is compiled: {size}"


def inputs(subject: Subject) -> str:
    """The model takes a batch of training and of validation data."""
    subject.require_keras()
    for name in TRAINED:
        x, _, _ = subject.few(name)
        subject.y_pred = first_batch.predict(subject.model, x)
    if not all(np.isfinite(_array(leaf)).all() for leaf in keras.tree.flatten(subject.y_pred)):
        raise UsageError(f"the model's outputs for x of shape {first_batch.shapes(x)} are not finite")
    return f"takes x {first_batch.shapes(x)} and returns {first_batch.shapes(subject.y_pred)}"


def labels(subject: Subject) -> str:
    """Labels fit the model's outputs and its loss, in the first batches and in their range over all batches."""
    subject.require_keras()
    with subject.components.naming("preprocessor"):
        for _, y, _ in subject.batches.values():  # of test data, too
            first_batch.require_numbers(subject.model, y)
    for name in TRAINED:
        x, y, weight = subject.batches[name]
        y_pred = first_batch.predict(subject.model, x)
        found = first_batch.check_labels(subject.model, y, y_pred)
        loss = first_batch.compute_loss(subject.model, (x, y, weight), y_pred)
        if loss is not None and not np.isfinite(loss):
            raise UsageError(f"the loss of a {name} batch is {loss}", remedy="check labels, weights and outputs")
        first_batch.check_label_range(subject.model, y_pred, subject.label_ranges[name], name)
        size = len(keras.tree.flatten(y)[0])
        if short := subject.samples[name].count % size or size - 1:  # another size than masks may have
            first_batch.check_short_batch(subject.model, (x, y, weight), short)
    facts = loss_facts(subject.model, 1)
    loss_name = facts[0].name if facts else "the model's own loss"
    return f"{found} fit {loss_name}{'' if loss is None else f', which is {loss:.4g} untrained'}"


def probabilities(subject: Subject) -> str:
    """A cross-entropy gets what it expects, probabilities or logits."""
    subject.require_keras()
    outputs = [_array(leaf) for leaf in keras.tree.flatten(subject.y_pred)]
    pairs = zip(loss_facts(subject.model, len(outputs)), outputs, strict=False)
    checked = [(facts, output) for facts, output in pairs if facts.takes_probabilities]
    if not checked:
        raise Skip("the loss is no cross-entropy of Keras's own")
    for facts, output in checked:
        activation = getattr(getattr(subject.model.layers[-1], "activation", None), "__name__", "")
        if facts.from_logits and activation in ("softmax", "sigmoid"):
            raise Warn(f"{facts.name} has from_logits=True, but the last layer ends in {activation}: use one of them")
        if not facts.from_logits and (output.min() < -1e-5 or output.max() > 1 + 1e-5):
            raise Warn(
                f"{facts.name} expects probabilities, but outputs range from {output.min():.3g} to {output.max():.3g}"
            )
    return f"{checked[0][0].name} gets {'logits' if checked[0][0].from_logits else 'probabilities'}"


def callbacks(subject: Subject) -> str:
    """Callbacks are Keras callbacks, and monitor metrics that exist."""
    subject.require_keras()
    components = subject.components
    folder = RunFolder(subject.scratch, subject.run_name)
    folder.path.mkdir(parents=True, exist_ok=True)
    with components.calling("model_builder", "get_callbacks"):
        listed = into_run_folder(components.model_builder.get_callbacks(), folder)  # type: ignore[union-attr]
    for callback in listed:
        watched = getattr(callback, "monitor", None)
        if isinstance(watched, str) and subject.metric_names and watched not in subject.metric_names:
            raise Warn(f"{type(callback).__name__} monitors {watched!r}; {nearest(watched, subject.metric_names)}")
    names = ", ".join(type(callback).__name__ for callback in listed)
    return f"{len(listed)} callbacks{f': {names}' if names else ''}"


def class_weight(subject: Subject) -> str:
    """Class weights are finite numbers of at least 0 for classes that exist."""
    subject.require_keras()
    components = subject.components
    with components.calling("model_builder", "get_class_weight"):
        given = components.model_builder.get_class_weight()  # type: ignore[union-attr]
        if given is None:
            raise Skip("get_class_weight() returns None")
        if not isinstance(given, Mapping):
            raise UsageError(
                f"must return a dict from class to weight, but returned {kind_of(given)}", key="get_class_weight()"
            )
        if len(keras.tree.flatten(subject.y_pred)) > 1 and given:
            class_weighted(given)(subject.batches["training"])
        classes = _array(keras.tree.flatten(subject.y_pred)[0]).shape[-1]
        known = classes if classes > 1 else 2
        for label in given:
            if not isinstance(label, int | np.integer) or not 0 <= label < known:
                raise UsageError(f"has the class {label!r}, but classes are 0 to {known - 1}", key="get_class_weight()")
        first_batch.require_class_weights(given)
        if given:
            class_weighted(given)(subject.batches["training"])
    return f"{len(given)} of {known} classes have a weight"


def step(subject: Subject) -> str:
    """One step has a finite loss and changes the weights; it also shows the metrics of an epoch."""
    subject.require_keras()
    new = subject.model = compiled_model(subject.components)
    batch = _weighted_batch(subject, new)
    new(keras.tree.map_structure(keras.ops.convert_to_tensor, batch[0]))
    before = [np.array(_array(each)) for each in new.trainable_variables]
    logs = _train_on(new, batch)
    tested = new.test_on_batch(batch[0], batch[1], sample_weight=batch[2], return_dict=True)
    subject.metric_names = [*logs, *(f"val_{name}" for name in tested)]
    if has_own_test_step(new):
        subject.of_one_batch = {f"val_{name}" for name in of_one_batch(new, tested)}
    loss = _loss(logs)
    subject.losses = [loss]
    after = [np.array(_array(each)) for each in new.trainable_variables]
    changed = sum(not np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    if not all(np.isfinite(each).all() for each in after) or not np.isfinite(loss):
        raise UsageError(f"after one step with the loss {loss:.4g}, not all weights are finite")
    if not changed:
        raise UsageError("one step changes no weight", remedy="is everything frozen, or the learning rate 0?")
    return f"one step changes {changed} of {len(before)} trainable weights"


def overfit(subject: Subject) -> str:
    """The loss of one batch falls clearly when it is learned from repeatedly."""
    subject.require_keras()
    batch = _weighted_batch(subject, subject.model)
    losses = subject.losses = _train_repeatedly(subject.model, batch, subject.losses)
    found = f"from {losses[0]:.4g} to {_last(losses):.4g} in {len(losses)} steps"
    if _falls(losses):
        return f"the loss of one batch falls {found}"
    other = compiled_model(subject.components)
    other.optimizer = keras.optimizers.Adam(0.001)
    others = _train_repeatedly(other, batch, [])
    if _falls(others):
        raise Warn(
            f"the loss of one batch falls {found}; with Adam(0.001) it falls from {others[0]:.4g} to "
            f"{_last(others):.4g}: check the optimizer and its learning rate"
        )
    raise UsageError(
        f"one batch cannot be learned: its loss goes {found}, and Adam(0.001) does no better",
        remedy="do labels belong to their inputs?",
    )


def export_metric(subject: Subject) -> str:
    """The metric that chooses the epoch to export is one of an epoch's."""
    subject.require_keras()
    config = subject.opened.config
    metric = config.export.metric
    if metric not in subject.metric_names:
        raise UsageError(
            f"no epoch has this metric (metrics: {', '.join(subject.metric_names)})",
            key="export.metric",
            received=metric,
            remedy=nearest(metric, subject.metric_names),
            origin=origin_of(config, "export.metric"),
        )
    if metric in subject.of_one_batch:
        raise Warn(
            f"test_step returns {metric.removeprefix('val_')!r} of the last batch only, and export.metric selects by "
            "it: keep a keras.metrics.Mean, and return its result()"
        )
    return f"the best epoch is the one with the {config.export.mode} of {metric}"


def export(subject: Subject) -> str:
    """The untrained model predicts the same after its export, whatever the size of a batch."""
    subject.require_keras()
    x, _, _ = subject.few("validation")
    new = compiled_model(subject.components)
    expected = first_batch.predict(new, x)
    name = write_model(new, subject.scratch, x)
    one = keras.tree.map_structure(lambda leaf: leaf[:1], x)
    loaded = load_exported(subject.scratch / name, input_dtypes(new, x)).predict(one)
    pairs = zip(keras.tree.flatten(expected), keras.tree.flatten(loaded), strict=True)
    difference = max(float(np.max(np.abs(_array(a)[:1] - b))) for a, b in pairs)
    form = "SavedModel" if name == SAVED_MODEL else "PyTorch program"
    return f"the untrained model can be exported and loaded as a {form}; largest difference {difference:.1e}"


def estimator(subject: Subject) -> str:
    """An estimator is fitted to a few batches, stored, loaded again, and predicts."""
    if not subject.is_generic:
        raise Skip
    components, root = subject.components, subject.opened.project.root
    train, validation = create_split(components, "training"), create_split(components, "validation")
    n_train, n_validation = min(train.n_iter, _MAX_BATCHES), min(validation.n_iter, _MAX_BATCHES)
    with components.calling("model_builder", "fit"):
        fitted = components.model_builder.fit(  # type: ignore[union-attr]
            endless(train, n_train), n_train, endless(validation, n_validation), n_validation
        )
        if not callable(getattr(fitted, "predict", None)):
            raise UsageError(f"returned {kind_of(fitted)}, which has no predict(x)", key="fit()")
    folder = subject.scratch / "estimator"
    folder.mkdir(exist_ok=True)
    save_estimator(fitted, folder, root)
    subject.y_pred = load_estimator(folder, root).predict(subject.few("validation")[0])
    return f"{type(fitted).__name__} is fitted to {n_train} of {train.n_iter} batches, stored and loaded, and predicts"


def functions(subject: Subject) -> str:
    """Each evaluation function returns one number for each of a few samples, and all labels are of one kind."""
    components = subject.components
    with components.calling("evaluator", "get_eval_funcs"):
        given = components.evaluator.get_eval_funcs()
    if given is None:
        raise Skip("get_eval_funcs() returns None: only the model's own metrics are computed")
    x, y, _ = subject.few("validation")
    y_pred = keras.tree.map_structure(_array, subject.y_pred)
    ids = [str(row) for row in range(len(keras.tree.flatten(y)[0]))]
    means: dict[str, float] = {}
    problems: list[Problem] = []
    for metric in sample_metrics(given):
        try:
            means[metric.name] = float(np.nanmean(scores(metric, ids, y, y_pred)))
        except UsageError as error:
            problems += error.problems
    if problems:
        raise UsageError(problems)
    first_batch.check_functions(components, x, y, y_pred)
    _check_kind_of_labels(subject, y_pred)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    return f"every function returns one number per sample; means of {len(ids)}, untrained: {shown}"


def _check_kind_of_labels(subject: Subject, y_pred: Any) -> None:
    """Checks that all labels are of the kind that the evaluation infers from the first batch.

    Predictions are known for a few samples only; they stand in for all others.

    Raises:
      UsageError: A label is of another kind.
    """
    kind, classes, from_logits = evaluation_kind(subject.components)

    def predicted(count: int) -> np.ndarray:
        return np.resize(y_pred, (count, *y_pred.shape[1:]))

    for name in ("validation", "test"):
        batches = subject.labels.get(name)
        if not batches or not isinstance(y_pred, np.ndarray):
            continue
        first = batches[0]
        _, outcome = outcome_of(kind, first, predicted(len(first)), len(classes or ()), from_logits)
        for number, some in enumerate(batches):
            try:
                outcome.columns(some, predicted(len(some)))
            except UsageError as error:
                raise UsageError(problems_under(f"{name} batch {number}", error)) from error


def _weighted_batch(subject: Subject, model: keras.Model) -> Any:
    """Returns the first training batch, weighted as in training."""
    batch = subject.batches["training"]
    weight = subject.components.model_builder.get_class_weight()  # type: ignore[union-attr]
    return with_axes(model, class_weighted(weight)(batch) if weight else batch)


def _train_on(model: keras.Model, batch: Any) -> dict[str, Any]:
    x, y, weight = batch
    logs = model.train_on_batch(x, y, sample_weight=weight, return_dict=True)
    model.reset_metrics()
    return dict(logs)


def _train_repeatedly(model: keras.Model, batch: Any, losses: list[float]) -> list[float]:
    """Learns from a batch until its loss is halved, or `MAX_STEPS` times; returns all losses."""
    losses = list(losses)
    while len(losses) < MAX_STEPS and not (len(losses) >= 5 and _last(losses) <= _HALF * losses[0]):
        losses.append(_loss(_train_on(model, batch)))
    return losses


def _falls(losses: list[float]) -> bool:
    fall = losses[0] - _last(losses)
    return bool(np.isfinite(fall) and fall >= (1 - _CLEARLY) * abs(losses[0]) and fall > 0)


def _last(losses: list[float]) -> float:
    """Returns the mean of the last losses: dropout makes single ones noisy."""
    return float(np.mean(losses[-5:]))


def _loss(logs: dict[str, Any]) -> float:
    if "loss" not in logs:
        raise Skip("the model's own train_step returns no loss")
    return float(logs["loss"])


def _array(leaf: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(leaf))
