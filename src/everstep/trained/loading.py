"""`everstep.load`: a run as one object, with its model, the names of its classes, its history and its samples."""

import functools
import math
import os
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.config import load_file
from everstep.data.formats import BadFile, read_parquet
from everstep.errors import UsageError, kind_of, renamed_keys
from everstep.run import Record, choose, damage, directory_of, loop_directory, read_final_weights
from everstep.tracking import SIDE_FIGURES, bare, of_validation, read_history
from everstep.trained.finding import Found, find, local_run
from everstep.trained.models import load_keras, load_run_checkpoint
from everstep.trained.predicting import predict

EXPORTED = "exported"

_SPLITS = ("validation", "test")
_ARGUMENTS = {"RUN": "run", "--checkpoint": "weights"}
"""The arguments of `load` by what the commands call them."""


def load(run: storage.PathLike, weights: str | int = EXPORTED) -> "TrainedRun":
    """Returns a run as one object, with its model, classes, history, configuration and evaluated samples.

        run = everstep.load("runs/cats")
        probabilities = run.predict("new_photos")
        print(run.classes[probabilities[0].argmax()], min(run.history["val_loss"]))

    Each is read when it is first used.

    Args:
      run: A run directory, or its name below `runs/`; its URL, or the run's id.
      weights: Which weights the model has: those of the export; of a checkpoint: a step, `last`, or several steps for
        their average; or `best`, as for `--checkpoint best`: by the metric for which the run keeps its best weights,
        else those that training has restored at its end, else by `val_loss`.

    Raises:
      UsageError: There is no such run, or it does not have these weights; says what there is.
    """
    with renamed_keys(_ARGUMENTS):
        if not isinstance(run, str | os.PathLike):
            raise UsageError(f"expected the directory or the name of a run, not {kind_of(run)}", key="RUN")
        name, wanted = directory_of(run), str(weights)
        found = find(local_run(name, None if wanted == EXPORTED else wanted))
        if found.directory is None or found.record is None:
            raise UsageError("is a model, not a run", key="RUN", received=name, remedy="everstep.predict takes it")
        if (wrong := damage(found.record)) is not None:
            raise UsageError(
                f"its run.json is damaged: {wrong} is missing, or is of another type",
                key="RUN",
                received=name,
                remedy="restore that file from a copy, or load the exported model alone",
            )
        return TrainedRun(found, found.directory, found.record, wanted)


class TrainedRun:
    """A run and what it has left; `everstep.load` returns it.

    Args:
      found: Where its model is.
      directory: The run directory.
      record: The content of its `run.json`.
      weights: As in `load`.

    Attributes:
      path: The run directory.
      record: The content of its `run.json`.
      weights: Which weights the model has: `exported`, or the steps of checkpoints.

    Raises:
      UsageError: The run does not have these weights.
    """

    def __init__(self, found: Found, directory: Path, record: Record, weights: str = EXPORTED) -> None:
        self.path, self.record = directory, record
        self._found = found
        self._wanted = EXPORTED if weights == "best" and _are_best(found, directory, record) else weights
        is_exported = self._wanted == EXPORTED
        self.weights = EXPORTED if is_exported else ",".join(map(str, choose(directory, self._wanted).steps))

    @functools.cached_property
    def model(self) -> keras.Model:
        """The model, with the preprocessing that is inside of it; not compiled.

        Raises:
          UsageError: The run has exported no `.keras` file, or it cannot be loaded safely.
        """
        if self._found.model is None or self._found.model.is_dir():
            has = "no model" if self._found.model is None else f"only the SavedModel {self._found.model}"
            raise UsageError(
                f"has exported {has}",
                key="run",
                received=str(self.path),
                remedy="build the model, and load weights with everstep.export.load_checkpoint(model, run)",
            )
        with renamed_keys({"model": "run"}):
            model = load_keras(self._found.model)
            if self.weights != EXPORTED:
                load_run_checkpoint(model, self.path, self._wanted)
        return model

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the model's outputs; [] where the data had none."""
        return list(self.record.get("classes") or [])

    @functools.cached_property
    def history(self) -> dict[str, list[float]]:
        """The logs under Keras's names, `loss` and `val_loss`, as in the History of `fit`: a value for each epoch.

        Of a run that logs by steps, a value for each time that it has logged.
        """
        return {name: [value for _, value in points] for name, points in _logged(self.path).items()}

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was trained with, as `config.yaml` has it; {} if there is none."""
        path = loop_directory(self.path) / "config.yaml"
        return dict(load_file(path)) if path.is_file() else {}

    @functools.cached_property
    def samples(self) -> list[dict[str, Any]]:
        """The rows of the evaluation sample by sample, of the validation data if there are several; [] without one.

        Each has the `id`, what was expected as `label`, the `prediction`, and the metrics. Classes are named.
        """
        folder = self.path / "reports"
        found = [folder / f"{split}.parquet" for split in _SPLITS]
        path = next((path for path in found if path.is_file()), None)
        if path is None:
            return []
        page = storage.read_json(path.with_suffix(".json"))
        names = (page.get("classes") if page.get("kind") == "classification" else None) or []
        try:
            rows: list[dict[str, Any]] = read_parquet(path).to_pylist()
        except BadFile as error:
            raise UsageError(
                f"cannot be read: {error}", key="run", received=str(path), remedy="evaluate again: everstep eval RUN"
            ) from error
        for row in rows if names else []:
            row |= {key: names[row[key]] for key in ("label", "prediction") if isinstance(row.get(key), int)}
        return rows

    def predict(self, data: Any, **options: Any) -> Any:
        """Returns the model's outputs for new data: arrays, or a file or folder.

        Args:
          data: As `inputs` of `everstep.predict`.
          **options: Of `everstep.predict`: `batch_size`, `without`, `resize`.

        Raises:
          UsageError: The data does not fit the model.
        """
        return predict(self.model, data, **options)

    def __repr__(self) -> str:
        record = self.record
        exported = read_final_weights(record, self.path)
        step = record["step"] if exported is None else exported.step
        if self.weights != EXPORTED:
            step = int(self.weights.rpartition(",")[2])
        until = {name: [value for at, value in points if at <= step] for name, points in _logged(self.path).items()}
        figures = [f"{name} {values[-1]:.4g}" for name, values in until.items() if values]
        place = f"epoch {record['epoch']} (step {record['step']})" if record["epoch"] else f"step {record['step']}"
        kind = EXPORTED if self.weights == EXPORTED else "saved"
        parts = [f"{record['status']} at {place}", f"{kind} weights of step {step}: {', '.join(figures)}"]
        if classes := self.classes:
            shown = f"{', '.join(classes[:6])}{', …' if len(classes) > 6 else ''}"
            parts.append(f"{len(classes)} classes: {shown}")
        return f"<{type(self).__name__} {str(self.path)!r}: {'; '.join(parts)}>"


def _logged(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the points of each log, step and value, by Keras's names."""
    place = loop_directory(directory)
    columns, rows = read_history(place / "history.csv")
    record = storage.read_json(place / "run.json")
    metrics = record.get("metrics", {})
    of_evaluation = set(metrics.get("validation", ())) - set(metrics.get("train", ()))
    found: dict[str, list[tuple[int, float]]] = {}
    for column in columns:
        if column in SIDE_FIGURES:
            continue
        is_validation = of_validation(column) or column in of_evaluation
        name = f"val_{bare(column)}" if is_validation else bare(column)
        found[name] = [(step, _number(cells[column])) for step, cells in rows if column in cells]
    return found


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _are_best(found: Found, directory: Path, record: Record) -> bool:
    """Returns whether the exported weights are the best ones.

    Raises:
      UsageError: The best ones are not kept any more, or nothing was evaluated.
    """
    if found.model is None:
        return False
    has_restored = read_final_weights(record, directory) is not None  # its best ones
    return has_restored or choose(directory, "best").steps == [record["step"]]
