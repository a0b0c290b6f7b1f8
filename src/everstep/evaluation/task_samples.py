"""A task's validation data, sample by sample: what its model predicts, or writes, for each."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.data import Stream, class_names, nest
from everstep.errors import UsageError
from everstep.evaluation import arrays
from everstep.evaluation.batch import SampleBatch
from everstep.evaluation.evaluator import Evaluation, Evaluator
from everstep.evaluation.outcome import kind_of
from everstep.evaluation.sample_metric import SampleMetric
from everstep.evaluation.shipped_metrics import AbsoluteError, Accuracy, CrossEntropy, SquaredError
from everstep.evaluation.text_metrics import ExactMatch, Rouge, SampleLoss, TokenF1
from everstep.task import Task
from everstep.types import Batch

_COUNTING_SECONDS = 2.0


def evaluate_samples(
    task: Task,
    model: keras.Model,
    batches: Iterable[Batch],
    directory: storage.PathLike,
    split: str,
    *,
    most: int | None = None,
    progress: Callable[[int], None] | None = None,
    classes: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
) -> Evaluation:
    """Writes a row for each sample: of classifiers and regressions the errors, of language models the texts, too.

    Samples have the names that the stream knows, such as those of their files (`Stream.sample_ids`), else numbers.

    Args:
      task: The task.
      model: Its model, with the weights to evaluate.
      batches: The data from its start, a Stream or any other batches: `(x, y)`, or `(x, y, weight)`.
      directory: The folder for the files.
      split: The name of the data, such as "validation".
      most: How many samples to evaluate; None for all.
      progress: Called after each batch with the number of samples so far.
      classes: The names of the classes, such as those in the run's record; None for those that the stream knows. They
        are not used where the model has another number of outputs.
      ids: The names of the samples; None for those that the stream knows.

    Raises:
      UsageError: The outputs are neither classes, numbers nor text.
    """
    if ids is None and isinstance(batches, Stream):
        ids = batches.sample_ids()
    counted = _Counted(batches)
    if getattr(task, "generates", False):  # a batch may have other rows than samples
        samples, total = _written(task, model, batches, most), None if most is None else lambda: None
        return Evaluator(_text_metrics(), kind="text").run(samples, directory, split, progress=progress, total=total)
    found = _predicted(task, model, counted, most, ids)
    first = next(found, None)
    if first is None:
        raise UsageError("the data gave no samples", key="task.validation_data")
    metrics = _metrics_for(arrays.host(first.y_true), arrays.host(first.y_pred))
    names = list(class_names(batches) if classes is None else classes)
    is_named = kind_of(first.y_true, first.y_pred) == "classification" and len(names) == _class_count(first.y_pred)
    return Evaluator(metrics, classes=names if is_named else None).run(
        _joined(first, found), directory, split, progress=progress, total=None if most is None else counted.total
    )


class _Counted:
    """Batches, of which the rows are counted.

    Args:
      batches: The batches.
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches, self._rows = iter(batches), 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._rows += arrays.rows(nest.flatten(batch)[0], "a batch")
            yield batch

    def total(self) -> int | None:
        """Reads the rest; returns how many rows there are in all, None if counting them takes too long."""
        end = time.monotonic() + _COUNTING_SECONDS
        return None if any(time.monotonic() > end for _ in self) else self._rows


def _text_metrics() -> list[SampleMetric]:
    try:
        rouge: list[SampleMetric] = [Rouge("rougeL")]
    except UsageError:  # the package is optional; the other metrics need none
        rouge = []
    return [SampleLoss(), TokenF1(), ExactMatch(), *rouge]


def _written(task: Any, model: keras.Model, batches: Iterable[Batch], most: int | None) -> Iterator[SampleBatch]:
    """Yields prompts, expected texts, and what the model writes."""
    count = 0
    for batch in batches:
        samples = task.written_samples(batch, model)
        samples = samples if most is None else samples[: most - count]
        if samples:
            columns = {name: np.asarray([sample[name] for sample in samples]) for name in samples[0]}
            predictions = {"text": columns["text"].astype(object), "loss": columns["loss"]}
            ids = [str(count + index) for index in range(len(samples))]
            yield SampleBatch(ids, columns["expected"].astype(object), predictions, columns["prompt"].tolist())
        count += len(samples)
        if most is not None and count >= most:
            return


def _class_count(y_pred: np.ndarray) -> int:
    return max(2, y_pred.reshape(len(y_pred), -1).shape[1])


def _predicted(
    task: Task, model: keras.Model, batches: Iterable[Batch], most: int | None, ids: Sequence[str] | None
) -> Iterator[SampleBatch]:
    """Yields labels and outputs, with the names of the samples if the data has any."""
    count = 0
    for batch in batches:
        features, labels, _ = task.unpack(batch)
        rows = slice(None if most is None else most - count)
        outputs = keras.Model.predict_on_batch(model, features)  # KerasHub's own would preprocess them once more
        y_pred = arrays.at(arrays.host(outputs), rows)
        y_true, inputs = arrays.at(arrays.host(labels), rows), arrays.at(arrays.host(features), rows)
        size = arrays.rows(y_pred, "the outputs")
        yield SampleBatch(None if ids is None else ids[count : count + size], y_true, y_pred, inputs)
        count += size
        if most is not None and count >= most:
            return


def _joined(first: SampleBatch, rest: Iterable[SampleBatch]) -> Iterator[SampleBatch]:
    yield first
    yield from rest


def _metrics_for(y_true: Any, y_pred: Any) -> list[SampleMetric]:
    """Returns the metrics that fit what a model predicts."""
    kind = kind_of(y_true, y_pred)
    if kind == "classification":
        logits = bool(((y_pred < 0) | (y_pred > 1)).any())
        return [CrossEntropy(from_logits=logits), Accuracy()]
    if kind == "regression":
        return [AbsoluteError(), SquaredError()]
    shapes = {name: _shape(values) for name, values in (("labels", y_true), ("outputs", y_pred))}
    raise UsageError(
        "the model predicts neither classes, numbers nor text",
        key="--samples",
        received=shapes,
        remedy="evaluate it from Python, with metrics of its own: everstep.evaluation.Evaluator",
    )


def _shape(values: Any) -> Any:
    return (
        {name: np.shape(value) for name, value in values.items()} if isinstance(values, Mapping) else np.shape(values)
    )
