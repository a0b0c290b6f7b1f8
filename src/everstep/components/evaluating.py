"""The evaluation of what was exported: every sample of validation and test data, in files and on MLflow."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everstep import storage
from everstep.components.building import Components
from everstep.components.columns import with_columns
from everstep.components.evaluator import EvaluatorBase
from everstep.components.export_check import ExportCheck
from everstep.components.flows import Flow, make_flow
from everstep.components.own_metrics import Overall
from everstep.components.run_folder import RunFolder
from everstep.components.tracking import Tracking
from everstep.data import nest
from everstep.errors import TrainingError, UsageError
from everstep.evaluation import Evaluator, SampleBatch, predictions, sample_metrics
from everstep.evaluation.display import picture
from everstep.evaluation.kinds import Kind

logger = logging.getLogger(__name__)

Split = Literal["validation", "test"]
Results = dict[str, dict[str, dict[str, float]]]
"""By split: `model.evaluate` and `eval_funcs`, each numbers by name."""

_SUFFIXES = (".csv", ".parquet", "_summary.csv", ".json")


class Artefact:
    """What is evaluated.

    Args:
      predict: Answers a batch of inputs.
      overall: Makes, for each split, what computes the model's own metrics from the answers.
    """

    def __init__(self, predict: Callable[[Any], Any], overall: Callable[[], Overall]) -> None:
        self.predict, self.overall = predict, overall


def evaluate_all(
    components: Components, folder: RunFolder, artefact: Artefact, tracking: Tracking, check: ExportCheck
) -> Results:
    """Evaluates validation and test data, and writes what was found.

    `reports/` has the rows, a summary and what a page is made of; the run's folder has copies of the rows under the
    names that users know; `reports/metrics.json` has all means, and notes of what is not as it was in training.

    Returns:
      The means.

    Raises:
      UsageError: Data, model and evaluation functions do not fit together.
      TrainingError: Validation data comes in several orders, or its value contradicts training; nothing was written.
    """
    splits: tuple[Split, ...] = ("validation", "test")
    tracking.start()
    results: Results = {split: _evaluated(components, folder, artefact, split, check) for split in splits}
    _copy(folder, str(components.config.project_name))
    number = _number(folder, results)
    storage.write_json(folder.reports / "metrics.json", {"evaluation": number, **results, "notes": check.notes})
    tracking.evaluation(number, named(results))
    return results


def check_evaluation(components: Components, validation: Flow) -> None:
    """Refuses, before anything is trained, what an evaluation would fail at: functions, ids, test data.

    Raises:
      UsageError: One line with the key, the file and the reason.
    """
    config, functions = components.config, _functions(components)
    try:
        sample_metrics(functions or ())
    except UsageError as error:
        place = config.place("evaluator_class")
        raise UsageError(f"evaluator_class: {config.evaluator_class}: {error} (from {place})") from error
    _ids(components, validation)
    if functions is not None:
        for _ in range(2):
            next(validation.batches())
        if trouble := components.validation_order.trouble:
            raise UsageError(trouble)
    make_flow(components, "test")


def named(results: Results) -> dict[str, float]:
    """Returns results in one level: `test__model.evaluate_loss`, `test_<function>`."""
    flat: dict[str, float] = {}
    for split, found in results.items():
        flat |= {f"{split}__model.evaluate_{name}": value for name, value in found["model.evaluate"].items()}
        flat |= {f"{split}_{name}": value for name, value in found["eval_funcs"].items()}
    return flat


def _evaluated(
    components: Components, folder: RunFolder, artefact: Artefact, split: Split, check: ExportCheck
) -> dict[str, Any]:
    flow = make_flow(components, split)
    evaluator = evaluator_of(components)
    with_samples = evaluator is not None and _show(components.evaluator) is None
    answers = _Answers(artefact, flow, _ids(components, flow), with_samples)
    if split == "validation" and not components.validation_order.is_known:
        next(flow.batches())  # something to compare the order of the others with
    checked = _checked(components, answers, split, check, has_rows=evaluator is not None)
    if evaluator is None:
        for _ in checked:
            pass
        _remove(folder, split)
        return {"model.evaluate": answers.overall(), "eval_funcs": {}}
    batches = answers.pictured(with_columns(components, checked))
    evaluation = evaluator.run(batches, folder.reports, split, overall=answers.filled)
    return {"model.evaluate": answers.overall(), "eval_funcs": evaluation.means}


def _checked(
    components: Components, answers: "_Answers", split: Split, check: ExportCheck, has_rows: bool
) -> Iterator[SampleBatch]:
    """Yields batches, and fails after the last one, before anything is written, where that would not be right.

    Raises:
      TrainingError: Rows would have wrong ids, or the numbers contradict training.
    """
    yield from answers
    if split != "validation":
        return
    if has_rows and (trouble := components.validation_order.trouble):
        raise TrainingError(
            f"no row is written: {trouble} (data_loader_class: {components.config.data_loader_class}, from "
            f"{components.config.place('data_loader_class')}); what is exported is complete: run again to evaluate it"
        )
    check.compare(answers.overall())


def evaluator_of(components: Components) -> Evaluator | None:
    """Returns what judges samples with the project's functions; None where it has none."""
    functions = _functions(components)
    if functions is None:
        return None
    kind, classes, from_logits = evaluated_as(components)
    show = _show(components.evaluator)
    return Evaluator(functions, kind=kind, classes=classes, from_logits=from_logits, show=show)


def evaluated_as(components: Components) -> tuple[Kind | None, Any, bool | None]:
    """Returns what the evaluator says of the data: their kind, the names of classes, and whether answers are logits."""
    own = components.evaluator
    return getattr(own, "kind", None), _class_names(components), getattr(own, "from_logits", None)


def _functions(components: Components) -> Any:
    with components.calling("evaluator", "get_eval_funcs"):
        return components.evaluator.get_eval_funcs()


def _class_names(components: Components) -> Any:
    with components.calling("evaluator", "get_class_names"):
        return components.evaluator.get_class_names()


class _Answers:
    """The batches of a split with the artefact's answers; passed over once, it knows the model's own metrics."""

    def __init__(self, artefact: Artefact, flow: Flow, index: Any, with_samples: bool) -> None:
        self._artefact, self._flow, self._index = artefact, flow, index
        self._with_samples = with_samples
        self._samples: list[Any] | None = None
        self._overall = artefact.overall()
        self._now: tuple[Any, Any] = (None, None)
        self.filled: dict[str, float] = {}

    def __iter__(self) -> Iterator[Any]:
        yield from predictions(self._answer, self._items(), limit=self._flow.count, index=self._index)
        self.filled.update(self._overall.result())

    def overall(self) -> dict[str, float]:
        """Returns the model's own metrics."""
        return dict(self.filled)

    def _items(self) -> Iterator[tuple[Any, ...]]:
        """Yields batches; the weights of validation data are no ids, and the ids of test data no weights."""
        for batch, samples in self._read():
            self._samples = samples
            x, y, third = (*batch, None)[:3]
            is_test = self._flow.split == "test"
            self._now = (y, None if is_test else third)
            yield (x, y, third) if is_test else (x, y)

    def _read(self) -> Iterator[tuple[tuple[Any, ...], list[Any] | None]]:
        return self._flow.with_samples() if self._with_samples else ((batch, None) for batch in self._flow.batches())

    def pictured(self, batches: Iterable[SampleBatch]) -> Iterator[SampleBatch]:
        """Yields the batches of `self`; of a model that gets pictures as plain numbers, with the loader's pictures."""
        for batch in batches:
            shown = _pictures(self._samples) if self._samples and not _is_picture(batch.inputs) else None
            yield batch if shown is None else batch._replace(inputs=shown)

    def _answer(self, x: Any) -> Any:
        y, weight = self._now
        y_pred = self._artefact.predict(x)
        self._overall.add(x, y, weight, y_pred)
        return y_pred


def _is_picture(inputs: Any) -> bool:
    """Tells whether a batch of inputs can be shown as they are: pictures, or texts."""
    first = nest.flatten(inputs)[0][0]
    return np.asarray(first).dtype.kind in "OSU" or picture(np.asarray(first)) is not None


def _pictures(samples: list[Any]) -> np.ndarray | None:
    """Returns the pictures, which may be of several sizes; None where samples are none."""
    first = [np.asarray(nest.flatten(sample)[0]) for sample in samples]
    if any(each.dtype.kind not in "biuf" or picture(each) is None for each in first):
        return None
    shown = np.empty(len(first), object)
    for row, each in enumerate(first):
        shown[row] = each
    return shown


def _ids(components: Components, flow: Flow) -> Any:
    if flow.split == "test":
        return None
    with components.calling("data_loader", "get_validation_index"):
        index = components.data_loader.get_validation_index()
    if index is not None and len(index) != flow.count:
        raise UsageError(
            f"{components.config.data_loader_class}.get_validation_index() returned {len(index)} ids for {flow.count} "
            f"validation samples (from {components.config.place('data_loader_class')})"
        )
    return index


def _show(evaluator: EvaluatorBase) -> Callable[[Any], Any] | None:
    return None if type(evaluator).show is EvaluatorBase.show else evaluator.show


def _copy(folder: RunFolder, project_name: str) -> None:
    """Copies the rows to where users look for them; test rows also to EVAL_REPORTS_DIR, where that is set."""
    copies = {
        "validation.csv": [folder.path / "validation_report.csv"],
        "test.csv": [folder.path / "eval_report.csv"],
        "test_summary.csv": [folder.path / "eval_report_summary.csv"],
    }
    if common := os.environ.get("EVAL_REPORTS_DIR"):
        there = Path(common) / project_name / folder.name
        storage.prepare_directory(there)
        copies["test.csv"].append(there / "eval_report.csv")
        copies["test_summary.csv"].append(there / "eval_report_summary.csv")
    for name, targets in copies.items():
        for target in targets:
            if (folder.reports / name).exists():
                storage.write_bytes(target, (folder.reports / name).read_bytes())
            else:
                target.unlink(missing_ok=True)


def _remove(folder: RunFolder, split: Split) -> None:
    """Removes the rows of an earlier evaluation that had functions."""
    storage.prepare_directory(folder.reports)
    for suffix in _SUFFIXES:
        (folder.reports / f"{split}{suffix}").unlink(missing_ok=True)


def _number(folder: RunFolder, results: Results) -> int:
    """Returns the number of this evaluation: that of the last one, unless it found something else."""
    try:
        last = storage.read_json(folder.reports / "metrics.json")
        number, before = int(last["evaluation"]), {split: last.get(split) for split in results}
    except (UsageError, KeyError, TypeError, ValueError):
        return 0
    return number if before == _as_stored(results) else number + 1


def _as_stored(results: Results) -> Any:
    """Returns results as JSON gives them back."""
    return {
        split: {kind: {name: _stored(value) for name, value in numbers.items()} for kind, numbers in found.items()}
        for split, found in results.items()
    }


def _stored(value: float) -> float | str:
    if value != value:
        return "NaN"
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, value)
