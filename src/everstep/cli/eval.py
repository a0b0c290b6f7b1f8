"""`everstep eval`."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import completion, options
from everstep.cli.command import new_app
from everstep.cli.eval_data import DataRequest, evaluate_on_data, is_recorded
from everstep.cli.output import aligned, number
from everstep.cli.resolving import Resolved, resolve
from everstep.cli.run_models import trained_task
from everstep.cli.run_resolved import run_resolved
from everstep.errors import UsageError
from everstep.run import choose, read, runs_like
from everstep.storage import json_text
from everstep.trained import local_run
from everstep.types import Logs

app = new_app()

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A run directory, or an experiment with --model-dir.",
        autocompletion=completion.run_or_experiment,
    ),
]
Samples = Annotated[
    int | None, typer.Option(metavar="N", help="Also write the first N samples, one by one, and the report.")
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="PATH", help=".npz, .csv, .parquet, .tfrecord with labels, or a folder of images by class."
    ),
]
Label = Annotated[
    str | None, typer.Option("--label", metavar="NAME", help="The array or column with the labels in --data.")
]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Samples at a time from --data.")]
Resize = Annotated[bool, typer.Option("--resize", help="Resize images of another size in --data.")]
ModelDir = Annotated[str | None, typer.Option(metavar="DIR", help="The run directory, where TARGET is an experiment.")]


@app.command(name="eval", epilog="Example: everstep eval runs/mnist-local-5f2c7a90b1 --checkpoint best --json")
@options.takes_request("experiment", "name", "limit_train", "overfit_batches", "sanity_eval")
def evaluate(
    request: options.ExperimentRequest,
    target: Target,
    model_dir: ModelDir = None,
    checkpoint: options.Checkpoint = None,
    samples: Samples = None,
    data: Data = None,
    label: Label = None,
    batch_size: BatchSize = 256,
    resize: Resize = False,
    json: options.Json = False,
) -> None:
    """Evaluate a run, or its model on other data.

    Of an experiment, configuration and data are read from the run directory, and the newest checkpoint is evaluated.
    With --checkpoint nothing in the run changes: the newest keeps its results, in TensorBoard, too. The run of a
    program of yours, such as everstep.fit, is evaluated on --data, by default on its validation data if these are
    files that the record names, with the loss and the metrics that its model was compiled with. With --samples,
    reports/validation.csv, or of --data test.npz reports/test.csv, has a row for each sample, of a language model with
    the texts it writes; everstep report shows the worst first.
    """
    if samples is not None and samples < 1:
        raise UsageError("must be at least 1", key="--samples", received=samples)
    wanted = DataRequest(data, label, batch_size, resize, samples)
    if data is not None:
        _show(evaluate_on_data(model_dir or target, wanted, checkpoint, request.backend, request.imports), json)
        return
    if label is not None:
        raise UsageError("names the labels in --data, which is missing", key="--label", received=label)
    experiment, directory, stored = _find(target, model_dir, checkpoint)
    if experiment is None and is_recorded(directory, stored[0], request.config_files or ()):
        _show(evaluate_on_data(str(directory), wanted, checkpoint, request.backend, request.imports), json)
        return
    chosen = None if checkpoint is None else choose(directory, checkpoint, needs="task")
    files = [*stored, *(request.config_files or ())]
    resolved = resolve(dataclasses.replace(request, experiment=experiment, config_files=files))
    if chosen is not None:
        print(f"evaluating {chosen.description}", file=sys.stderr)
    logs = run_resolved(resolved, "eval", directory, checkpoint=chosen)
    if samples is not None:
        _write_samples(resolved, directory, checkpoint, samples)
    _show(logs, json)


def _show(logs: Logs, as_json: bool) -> None:
    print(json_text(logs) if as_json else aligned([(name, number(value)) for name, value in logs.items()]))


def _write_samples(resolved: Resolved, directory: Path, checkpoint: str | None, count: int) -> None:
    """Evaluates samples one by one, and writes them and the report of the run."""
    from everstep import report
    from everstep.data import make_stream
    from everstep.evaluation import evaluate_samples

    params = resolved.params
    task, model = trained_task(directory, checkpoint, params)
    data = params.task.validation_data
    stream = make_stream(task.inputs_for(data), data, training=False, seed=params.runtime.seed)
    classes = read(directory).get("classes")
    result = evaluate_samples(task, model, stream, directory / "reports", "validation", most=count, classes=classes)
    print(f"{result.rows} samples in {report.write([directory])}", file=sys.stderr)


def _find(target: str, model_dir: str | None, checkpoint: str | None) -> tuple[str | None, Path, list[str]]:
    """Returns the experiment, if TARGET is one, the run directory, and the configuration stored there."""
    target, model_dir = local_run(target, checkpoint), model_dir and local_run(model_dir, checkpoint)
    stored = Path(target, "config.yaml")
    if stored.is_file():
        if model_dir is not None and Path(model_dir).resolve() != Path(target).resolve():
            raise UsageError(
                f"{target!r} is a run directory, too", key="--model-dir", received=model_dir, remedy="name one of them"
            )
        return None, Path(target), [str(stored)]
    if model_dir is not None:
        if not Path(model_dir).is_dir():
            raise UsageError("is not a directory", key="--model-dir", received=model_dir, remedy="name a run directory")
        return target, Path(model_dir), []
    if Path(target).is_dir():
        raise UsageError("is not a run directory: it has no config.yaml", key="TARGET", received=target)
    raise UsageError(
        "is not a run directory",
        key="TARGET",
        received=target,
        remedy=("if it is an experiment, add --model-dir DIR", *filter(None, [runs_like(target)])),
    )
