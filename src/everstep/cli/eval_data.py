"""`everstep eval RUN --data`: a trained model on data from a file or a folder, without the program that trained it."""

import contextlib
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep import report
from everstep.cli import run_models
from everstep.cli.output import quiet
from everstep.cli.resolving import import_modules
from everstep.config import load_file
from everstep.errors import UsageError, renamed_keys
from everstep.run import FILES, Record, choose, read, read_final_weights
from everstep.trained import Found, local_run, opened, recorded_source
from everstep.types import Logs

KINDS = ".npz, .csv, .parquet or .tfrecord with labels, or a folder with a folder of images for each class"
"""The data that can be evaluated on, for people."""


@dataclasses.dataclass(frozen=True)
class DataRequest:
    """What to evaluate on.

    Attributes:
      data: The file or folder, or its URL; None for the data that the run was validated on.
      label: The array, column or feature with the labels; None for the usual one.
      batch_size: How many samples at a time.
      resize: Whether to resize images of another size.
      samples: How many samples to write one by one; None for none.
    """

    data: str | None
    label: str | None
    batch_size: int
    resize: bool
    samples: int | None


def evaluate_on_data(
    run: str, request: DataRequest, checkpoint: str | None, backend: str | None, imports: Sequence[str] | None
) -> Logs:
    """Evaluates a run's exported model on data; returns the loss and the metrics that it was compiled with.

    Raises:
      UsageError: The run has no model, or the data cannot be read, has no labels, or does not fit.
    """
    if request.batch_size < 1:
        raise UsageError("must be at least 1", key="--batch-size", received=request.batch_size)
    with opened(local_run(run, checkpoint)) as found, renamed_keys({"--input": "--data"}):
        if found.model is None or found.model.suffix != ".keras":
            raise UsageError(
                "has no exported .keras model to evaluate",
                key="TARGET",
                received=run,
                remedy="export a run of an experiment or of everstep.fit: everstep export RUN --format keras; for one "
                "of a Training or of components build the model, load its weights with "
                "everstep.export.load_checkpoint(model, run), and call model.evaluate",
            )
        if request.samples is not None and found.directory is None:
            raise UsageError(
                "a model alone has no folder for them", key="--samples", received=request.samples, remedy="name the run"
            )
        run_models.choose_backend_of(found, backend)
        import_modules(imports or ())
        if found.directory is not None:
            print(f"evaluating {_weights(found, found.directory, checkpoint)}", file=sys.stderr)
        return run_models.quietly(lambda: _evaluate(found, request, checkpoint))


def _weights(found: Found, directory: Path, checkpoint: str | None) -> str:
    """Returns which weights are evaluated: those of a checkpoint, or those that were exported, with their step."""
    if checkpoint is not None:
        return choose(directory, checkpoint).description
    record = found.record or {}
    final = read_final_weights(record, directory)
    step = record.get("step") if final is None else final.step
    epoch = "" if final is None or final.epoch is None else f" (epoch {final.epoch})"
    return f"the exported weights, of step {step}{epoch}"


def _evaluate(found: Found, request: DataRequest, checkpoint: str | None) -> Logs:
    with quiet():
        from everstep.trained import (
            LabelledBatches,
            LabelledData,
            RecordedData,
            compile_as_saved,
            output_size,
            predictor_of,
            split_name,
            write_samples,
        )
    predictor: Any = predictor_of(found, checkpoint)
    is_compiled = found.model is not None and compile_as_saved(predictor.model, found.model)
    size = output_size(predictor.model)
    classes = (found.record or {}).get("classes")
    data: Any
    if request.data is None:
        data = RecordedData(found.record or {}, predictor.specs)
        print(f"on the validation data of the run, {data.description}", file=sys.stderr)
    else:
        data = LabelledData(request.data, predictor.specs, size, request.label, classes, request.resize)
    if data.class_names and not classes:
        numbered = ", ".join(f"{name} {number}" for number, name in enumerate(data.class_names))
        print(f"the record has no names of classes, so that they count in this order: {numbered}", file=sys.stderr)
    batches = LabelledBatches(predictor, data, request.batch_size)
    split = "validation" if request.data is None else split_name(request.data)
    logs = _compiled_logs(batches) if is_compiled else {}
    if request.samples is None:
        return logs or write_samples(batches, None, split)
    directory = found.directory or Path()
    means = write_samples(batches, directory / "reports", split, request.samples)
    print(f"{min(request.samples, data.count)} samples in {report.write([directory])}", file=sys.stderr)
    return logs or means


def _compiled_logs(batches: Any) -> Logs:
    """Returns the loss and the metrics of a compiled model, computed as they are at the end of an epoch."""
    from everstep.experiment_config import ExperimentConfig
    from everstep.loop import create_trainer
    from everstep.task import CompiledTask, TaskConfig

    task = CompiledTask(batches.predictor.model, validation_data=batches.stream())
    with contextlib.closing(
        create_trainer(ExperimentConfig(task=TaskConfig()), task, train=False, evaluate=True)
    ) as found:
        return dict(found.evaluate())


def is_recorded(directory: Path, stored: str, given: Sequence[str]) -> bool:
    """Returns whether a run is evaluated on the data that its record names, as no experiment makes it.

    Args:
      directory: The run directory.
      stored: Its `config.yaml`.
      given: Other configuration files, which may name an experiment.

    Raises:
      UsageError: Neither the run nor a file names an experiment, and the record names no data.
    """
    if given or load_file(stored).get("experiment"):
        return False
    if recorded_source(read(directory)) is not None:
        return True
    raise UsageError(
        f"was trained by a program of yours, and {_validated_on(read(directory))} cannot be read from its record",
        key="TARGET",
        received=str(directory),
        remedy=f"name the data: everstep eval {directory} --data PATH ({KINDS})",
    )


def _validated_on(record: Record) -> str:
    """Returns what a run was validated on: the names of its files, if the record has them."""
    names = list((record["data"].get("validation") or {}).get(FILES) or ())
    if not names:
        return "its data"
    more = f" and {len(names) - 3} more files" if len(names) > 3 else ""
    return f"its validation data ({', '.join(names[:3])}{more})"
