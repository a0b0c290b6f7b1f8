"""The evaluation functions, on predictions for real samples."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.components.checks.outcome import NotNeeded
from everstep.components.checks.subject import Subject
from everstep.components.estimator_file import load_estimator, save_estimator
from everstep.components.evaluating import evaluated_as
from everstep.components.flows import Flow, make_flow
from everstep.components.preflight import check_functions
from everstep.errors import UsageError, kind_of
from everstep.evaluation import sample_metrics
from everstep.evaluation.outcome import outcome_of
from everstep.evaluation.scoring import scores

_BATCHES = 16


def functions(subject: Subject) -> str:
    """Each function returns one number for each of a few samples."""
    components = subject.components
    with components.calling("evaluator", "get_eval_funcs"):
        given = components.evaluator.get_eval_funcs()
    if given is None:
        raise NotNeeded("get_eval_funcs() returns None: only the model's own metrics are computed")
    x, y, _ = subject.few("validation")
    y_pred = keras.tree.map_structure(lambda leaf: np.asarray(keras.ops.convert_to_numpy(leaf)), subject.y_pred)
    ids = [str(row) for row in range(len(keras.tree.flatten(y)[0]))]
    means, wrong = {}, []
    for metric in sample_metrics(given):
        try:
            means[metric.name] = float(np.nanmean(scores(metric, ids, y, y_pred)))
        except UsageError as error:
            wrong.append(" ".join(str(error).split()))
    if wrong:
        raise UsageError("\n".join(wrong))
    check_functions(components, x, y, y_pred)
    _check_labels(subject, y_pred)
    shown = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    return f"one number for each sample from every function; means of {len(ids)}, untrained: {shown}"


def _check_labels(subject: Subject, y_pred: Any) -> None:
    """Reads all labels as an evaluation does: what the first batch looks like has to be true of all of them.

    There are predictions for a few samples only; they stand for all others.

    Raises:
      UsageError: A label is none of the kind that the evaluation takes the data for.
    """
    components = subject.components
    kind, classes, from_logits = evaluated_as(components)
    for split in ("validation", "test"):
        labels = subject.labels.get(split)
        if not labels or not isinstance(y_pred, np.ndarray):
            continue
        _, outcome = outcome_of(kind, labels[0], _rows(y_pred, len(labels[0])), len(classes or ()), from_logits)
        for number, some in enumerate(labels):
            try:
                outcome.columns(some, _rows(y_pred, len(some)))
            except UsageError as error:
                raise UsageError(f"{split} batch {number}: {error}") from error


def _rows(values: np.ndarray, count: int) -> np.ndarray:
    return np.resize(values, (count, *values.shape[1:]))


def estimator(subject: Subject) -> str:
    """An estimator is fitted to a few batches, predicts, and comes back from its file."""
    if not subject.is_generic:
        raise NotNeeded
    components = subject.components
    train, validation = make_flow(components, "training"), make_flow(components, "validation")
    n_train, n_validation = min(train.n_iter, _BATCHES), min(validation.n_iter, _BATCHES)
    with components.calling("model_builder", f"fit, on {n_train} of {train.n_iter} batches, "):
        fitted = components.model_builder.fit(  # type: ignore[union-attr]
            _again(train, n_train), n_train, _again(validation, n_validation), n_validation
        )
    if not callable(getattr(fitted, "predict", None)):
        raise UsageError(f"fit() returned {kind_of(fitted)}, which has no predict(x)")
    subject.y_pred = _stored(fitted, subject).predict(subject.few("validation")[0])
    return f"{type(fitted).__name__} is fitted to {n_train} of {train.n_iter} batches, stored and loaded, and predicts"


def _stored(fitted: Any, subject: Subject) -> Any:
    folder: Path = subject.scratch / "estimator"
    folder.mkdir(exist_ok=True)
    save_estimator(fitted, folder, subject.opened.project.root)
    return load_estimator(folder, subject.opened.project.root)


def _again(flow: Flow, n_iter: int) -> Iterator[tuple[Any, ...]]:
    while True:
        yield from itertools.islice(flow.batches(), n_iter)
