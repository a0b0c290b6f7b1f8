"""The evaluation of an export: every sample of validation and test data, in files, on pages and on MLflow.

Nothing replaces the results of an earlier evaluation before it is known that the new ones belong to what was trained:
validation data has kept its order, and the model's validation value is that of the exported epoch.
"""

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everstep import redaction, report, storage
from everstep.config import Change, is_below, load_file, tree_differences
from everstep.data import nest
from everstep.errors import TrainingError, UsageError, plain_text
from everstep.evaluation import Evaluator, OutcomeKind, SampleBatch, picture, predictions, sample_metrics
from everstep.projects import COMPONENTS, Tracking
from everstep.projects.components.base_classes import EvaluatorBase
from everstep.projects.components.building import Components
from everstep.projects.components.config import ConfigStruct, training_values
from everstep.projects.components.data_splits import DataSplit, create_split
from everstep.projects.components.model_metrics import ModelMetrics
from everstep.projects.components.run_folder import RunFolder
from everstep.report import write_card
from everstep.run import code_version, imported_change, with_files_of

logger = logging.getLogger(__name__)

SplitName = Literal["validation", "test"]
Results = dict[str, dict[str, dict[str, float]]]
"""By split: `model.evaluate` and `eval_funcs`, each numbers by name."""

CODE = "code"
"""The name of the code among the keys that may change."""

_SUFFIXES = (".csv", ".parquet", "_summary.csv", ".json")
_COPIES = ("validation_report.csv", "eval_report.csv", "eval_report_summary.csv")
_TOLERANCE = 1e-3  # relative: the same weights on the same data, perhaps on another machine


def evaluate_all(
    components: Components,
    folder: RunFolder,
    predict: Callable[[Any], Any],
    model_metrics: Callable[[], ModelMetrics],
    tracking: Tracking,
    check: "ExportCheck",
) -> Results:
    """Evaluates validation and test data, and writes the results.

    `reports/` gets the rows, a summary and the data of the page; the run's folder gets copies of the rows under the
    names that users know; `reports/metrics.json` has all means, and notes on what has changed since training.

    Args:
      components: The project's components.
      folder: The run's folder.
      predict: Returns the exported model's predictions for a batch of inputs.
      model_metrics: Creates, for each split, what computes the model's own metrics.
      tracking: Where the means are logged.
      check: Compares the results with training.

    Returns:
      The means.

    Raises:
      UsageError: Data, model and evaluation functions do not fit together.
      TrainingError: Validation data comes in several orders, or its value contradicts training; nothing was written.
    """
    tracking.start()
    results: Results = {}
    splits: tuple[SplitName, ...] = ("validation", "test")
    for name in splits:
        split = create_split(components, name)
        evaluator = create_evaluator(components)
        shows_inputs = evaluator is not None and _own_show(components.evaluator) is None
        one_pass = _Pass(predict, model_metrics(), split, _ids(components, split), shows_inputs)
        batches = one_pass.batches()
        if name == "validation":
            if not components.validation_order.is_known:
                next(split.batches())  # a first batch to compare the order with
            batches = _checked(components, one_pass, check, has_rows=evaluator is not None)
        means: dict[str, float] = {}
        if evaluator is None:
            for _ in batches:
                pass
            _remove_rows(folder, name)
        else:
            shown = one_pass.with_pictures(with_columns(components, batches))
            means = evaluator.run(shown, folder.reports, name, overall=one_pass.metrics).means
        results[name] = {"model.evaluate": dict(one_pass.metrics), "eval_funcs": means}
    _copy_rows(folder, str(components.config.project_name))
    number = _evaluation_number(folder, results)
    storage.write_json(folder.path / COMPONENTS.results, {"evaluation": number, **results, "notes": check.notes})
    tracking.log_evaluation(number, results)
    return results


def check_evaluation(components: Components, validation: DataSplit) -> None:
    """Refuses, before anything is trained, what an evaluation would fail at: functions, ids, test data.

    Raises:
      UsageError: Names the key, the file and the reason.
    """
    functions = _eval_funcs(components)
    with components.naming("evaluator"):
        sample_metrics(functions or ())
    _ids(components, validation)
    if functions is not None:
        for _ in range(2):
            next(validation.batches())
        if problem := components.validation_order.problem:
            raise UsageError(components.named("data_loader", problem))
    create_split(components, "test")


def create_evaluator(components: Components) -> Evaluator | None:
    """Returns what scores samples with the project's functions; None where it has none."""
    functions = _eval_funcs(components)
    if functions is None:
        return None
    kind, classes, from_logits = evaluation_kind(components)
    return Evaluator(
        functions, kind=kind, classes=classes, from_logits=from_logits, show=_own_show(components.evaluator)
    )


def evaluation_kind(components: Components) -> tuple[OutcomeKind | None, Any, bool | None]:
    """Returns what the evaluator declares: the kind of problem, names of classes, whether predictions are logits."""
    own = components.evaluator
    with components.calling("evaluator", "get_class_names"):
        classes = own.get_class_names()
    return getattr(own, "kind", None), classes, getattr(own, "from_logits", None)


def _eval_funcs(components: Components) -> Any:
    with components.calling("evaluator", "get_eval_funcs"):
        return components.evaluator.get_eval_funcs()


def _own_show(evaluator: EvaluatorBase) -> Callable[[Any], Any] | None:
    return None if type(evaluator).show is EvaluatorBase.show else evaluator.show


def _ids(components: Components, split: DataSplit) -> Any:
    """Returns the ids of validation samples; test samples carry their own."""
    if split.name == "test":
        return None
    with components.calling("data_loader", "get_validation_index"):
        index = components.data_loader.get_validation_index()
        if index is not None and len(index) != split.count:
            raise UsageError(
                f"returned {len(index)} ids for {split.count} validation samples", key="get_validation_index()"
            )
    return index


class _Pass:
    """One pass over a split with predictions; afterwards `metrics` has the model's own metrics."""

    def __init__(
        self, predict: Callable[[Any], Any], metrics: ModelMetrics, split: DataSplit, index: Any, shows_inputs: bool
    ) -> None:
        self._predict, self._model_metrics, self._split, self._index = predict, metrics, split, index
        self._shows_inputs = shows_inputs
        self._samples: list[Any] | None = None
        self._labels: tuple[Any, Any] = (None, None)
        self.metrics: dict[str, float] = {}

    def batches(self) -> Iterator[SampleBatch]:
        yield from predictions(self._predicted, self._items(), limit=self._split.count, index=self._index)
        self.metrics.update(self._model_metrics.result())

    def _items(self) -> Iterator[tuple[Any, ...]]:
        """Yields batches; validation weights are no ids, and test ids are no weights."""
        is_test = self._split.name == "test"
        if self._shows_inputs:
            batches = self._split.with_samples()
        else:
            batches = ((batch, None) for batch in self._split.batches())
        for batch, self._samples in batches:
            x, y, third = (*batch, None)[:3]
            self._labels = (y, None if is_test else third)
            yield (x, y, third) if is_test else (x, y)

    def _predicted(self, x: Any) -> Any:
        y_pred = self._predict(x)
        self._model_metrics.add(x, *self._labels, y_pred)
        return y_pred

    def with_pictures(self, batches: Iterable[SampleBatch]) -> Iterator[SampleBatch]:
        """Yields batches; where a model gets pictures as plain numbers, with the loader's pictures as inputs."""
        for batch in batches:
            shown = _pictures(self._samples) if self._samples and not _can_be_shown(batch.inputs) else None
            yield batch if shown is None else batch._replace(inputs=shown)


def _can_be_shown(inputs: Any) -> bool:
    """Whether the inputs of a batch are pictures or texts."""
    first = np.asarray(nest.flatten(inputs)[0][0])
    return first.dtype.kind in "OSU" or picture(first) is not None


def _pictures(samples: list[Any]) -> np.ndarray | None:
    """Returns the samples as pictures, which may be of several sizes; None if they are none."""
    first = [np.asarray(nest.flatten(sample)[0]) for sample in samples]
    if any(each.dtype.kind not in "biuf" or picture(each) is None for each in first):
        return None
    shown = np.empty(len(first), object)
    for row, each in enumerate(first):
        shown[row] = each
    return shown


def _checked(components: Components, one_pass: _Pass, check: "ExportCheck", has_rows: bool) -> Iterator[SampleBatch]:
    """Yields validation batches, and fails after the last one, before anything is written.

    Raises:
      TrainingError: Rows would have wrong ids, or the numbers contradict training.
    """
    yield from one_pass.batches()
    if has_rows and (problem := components.validation_order.problem):
        named = components.named("data_loader", problem)
        raise TrainingError(
            f"no row is written: {named.fill(named.reason)}",
            key=named.key,
            remedy=f"{problem.fill(problem.remedy)}; the export is complete: run again to evaluate it",
            origin=named.origin,
        )
    check.compare(one_pass.metrics)


def with_columns(components: Components, batches: Iterator[SampleBatch]) -> Iterator[SampleBatch]:
    """Yields batches with the columns that the evaluator's `get_columns`, if defined, returns for each sample.

    Raises:
      UsageError: It fails, or does not return the same names for every sample.
    """
    evaluator = components.evaluator
    if type(evaluator).get_columns is EvaluatorBase.get_columns:
        yield from batches
        return
    done = 0
    for batch in batches:
        size = len(nest.flatten(batch.y_true)[0])
        ids = range(done, done + size) if batch.ids is None else np.asarray(batch.ids).reshape(-1).tolist()
        with components.calling("evaluator", "get_columns"):
            columns = _columns(evaluator, batch, [_text(each) for each in ids])
        yield batch._replace(columns=columns)
        done += size


def _columns(evaluator: EvaluatorBase, batch: SampleBatch, ids: list[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for i, name in enumerate(ids):
        x, y = (nest.map_leaves(lambda leaf, i=i: leaf[i], part) for part in (batch.inputs, batch.y_true))
        one = evaluator.get_columns(x, y, name)
        if not isinstance(one, dict) or (i and one.keys() != found.keys()):
            expected = f"a dict with the keys {', '.join(map(repr, found))}" if i else "a dict of numbers and texts"
            raise UsageError(f"must return {expected}, but returned {one!r:.80} for {name!r}", key="get_columns()")
        for key, value in one.items():
            found.setdefault(key, []).append(value)
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value)


class ExportCheck:
    """Compares an evaluation with the training of the export: settings, code and validation value.

    Args:
      folder: The run's folder, with a complete export.
      config: The configuration of the evaluation.
      record: The contents of `export.json`.
      allow_change: Keys that may differ from training, and `code`, even if the numbers then contradict training's.

    Attributes:
      notes: A line for everything that differs; the pages of the run show them.
    """

    def __init__(
        self, folder: RunFolder, config: ConfigStruct, record: Mapping[str, Any], allow_change: Sequence[str] = ()
    ) -> None:
        self._record, self._allowed = record, allow_change
        before = ConfigStruct(load_file(folder.path / COMPONENTS.export_config))
        self._settings = tree_differences(*(redaction.tree(training_values(each)) for each in (before, config)))
        code, root = record.get("code") or {}, folder.path.parent.parent
        self._code = imported_change(code, with_files_of(code, code_version(root), root))
        places = [each.get("data_dir") for each in (before, config)]
        moved = [] if places[0] == places[1] else [Change("data_dir", *places)]
        self.notes: list[str] = []
        if self._settings or moved:
            self._note(f"the settings have changed since training: {_listed([*self._settings, *moved])}")
        if self._code:
            self._note(f"the code has changed since the export: {self._code}")

    def compare(self, found: Mapping[str, float]) -> None:
        """Compares the model's metrics on the validation data with those of the exported epoch.

        Call it before anything is written: numbers that contradict training must not replace those that do not.

        Args:
          found: The metrics, under their names without `val_`.

        Raises:
          TrainingError: They differ, and settings or code have changed.
        """
        metric = str(self._record.get("metric"))
        trained, now = self._record.get(metric), found.get(metric.removeprefix("val_"))
        if not metric.startswith("val_") or trained is None or now is None or _same(float(trained), now):
            return
        epoch = self._record.get("epoch")
        text = f"{metric} of the exported model is {now:.6g}, but was {float(trained):.6g} in training"
        text += "" if epoch is None else f" (epoch {int(epoch) + 1})"
        refused = [change for change in self._settings if not is_below(change.path, self._allowed)]
        keys = [change.path for change in refused] + ([CODE] if self._code and CODE not in self._allowed else [])
        if keys:
            reasons = [f"settings have changed ({_listed(refused)})"] if refused else []
            reasons += [f"the code has changed ({self._code})"] if self._code else []
            flags = " ".join(f"--allow-change {key}" for key in keys)
            raise TrainingError(
                f"{text}; since then, {'; '.join(reasons)}; nothing was written",
                remedy=f"change it back, start a run with another name, or replace the reports nevertheless: {flags}",
            )
        self._note(text)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        logger.warning("%s", text)


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(map(str, changes))


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))


def _copy_rows(folder: RunFolder, project_name: str) -> None:
    """Copies the rows to the names that users know; test rows also to EVAL_REPORTS_DIR, where that is set."""
    copies = dict(zip(("validation.csv", "test.csv", "test_summary.csv"), _COPIES, strict=True))
    common = os.environ.get("EVAL_REPORTS_DIR")
    for name, copy in copies.items():
        targets = [folder.path / copy]
        if common and copy != "validation_report.csv":
            targets.append(Path(common) / project_name / folder.name / copy)
            storage.prepare_directory(targets[-1].parent)
        for target in targets:
            if (folder.reports / name).exists():
                storage.write_bytes(target, (folder.reports / name).read_bytes())
            else:
                target.unlink(missing_ok=True)


def _remove_rows(folder: RunFolder, name: SplitName) -> None:
    """Removes the rows of an earlier evaluation, which had functions."""
    storage.prepare_directory(folder.reports)
    for suffix in _SUFFIXES:
        (folder.reports / f"{name}{suffix}").unlink(missing_ok=True)


def _evaluation_number(folder: RunFolder, results: Results) -> int:
    """Returns the number of this evaluation: that of the last one if the results are the same, else the next."""
    try:
        last = storage.read_json(folder.path / COMPONENTS.results)
        number, before = int(last["evaluation"]), {split: last.get(split) for split in results}
    except (UsageError, KeyError, TypeError, ValueError):
        return 0
    now = {
        split: {kind: {name: _stored(value) for name, value in numbers.items()} for kind, numbers in found.items()}
        for split, found in results.items()
    }
    return number if before == now else number + 1


def _stored(value: float) -> float | str:
    """Returns a number as JSON stores it."""
    if value != value:
        return "NaN"
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, value)


def write_pages(folder: RunFolder, config: ConfigStruct, tracking: Tracking) -> None:
    """Writes `reports/report.html` and the model card, and logs them, with the rows, as artifacts.

    A page that cannot be written (the disk is full, for example) is a warning: the evaluation itself is complete.

    Args:
      folder: The run's folder, with a complete evaluation.
      config: The configuration, which describes the model.
      tracking: Where the files are logged.
    """
    page = folder.reports / "report.html"
    written = _try_to_write("the report", lambda: [report.write(folder.path)])
    if not written:
        page.unlink(missing_ok=True)  # it is of an older evaluation
    written += _try_to_write("the model card", lambda: write_card(folder.path, config.as_dict()))
    rows = [folder.path / name for name in _COPIES if (folder.path / name).is_file()]
    tracking.files([*written, *rows])


def _try_to_write(what: str, write: Callable[[], list[Path]]) -> list[Path]:
    try:
        return write()
    except Exception as error:  # whatever it is, the evaluation is complete
        reason = plain_text(error) or type(error).__name__
        logger.warning("%s could not be written (%s); the evaluation is complete: evaluate again for it", what, reason)
        logger.debug("%s could not be written", what, exc_info=True)
        return []
