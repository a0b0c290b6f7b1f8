"""`everstep predict`."""

import sys
from typing import Annotated, Any

import typer

from everstep.cli import completion, options, run_models
from everstep.cli.command import new_app
from everstep.cli.output import print_last, quiet
from everstep.cli.resolving import import_modules
from everstep.errors import UsageError, nearest
from everstep.run import choose
from everstep.trained import Found, local_run, opened, recorded_source

app = new_app()

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run directory, a run's id, a .keras file or a SavedModel.",
        autocompletion=completion.runs,
    ),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help=".npz, .npy, .csv, .parquet, .tfrecord, or a folder of images; by default the run's validation data.",
    ),
]
Output = Annotated[str, typer.Option("--output", metavar="FILE", help="A .csv or .parquet file for the rows.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Samples at a time.")]
OutputKind = Annotated[
    str | None, typer.Option(metavar="KIND", help="classification or regression; by default derived from the output.")
]
Probabilities = Annotated[bool, typer.Option("--probabilities", help="Write the probability of every class.")]
Without = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A column or array that is not an input, such as a label; repeatable."),
]
Resize = Annotated[bool, typer.Option("--resize", help="Resize images of another size.")]

_KINDS = ("classification", "regression")


@app.command(epilog="Example: everstep predict runs/mnist-local-5f2c7a90b1 --input new.npz --output answers.csv")
def predict(
    run: Run,
    output: Output,
    input_: Input = None,
    checkpoint: options.Checkpoint = None,
    batch_size: BatchSize = 256,
    kind: OutputKind = None,
    probabilities: Probabilities = False,
    without: Without = None,
    resize: Resize = False,
    backend: options.Backend = None,
    imports: options.Imports = None,
) -> None:
    """Predict new data with a trained model.

    Writes a row for each sample: id, prediction, and of a classifier the name of the class predicted, as label, where
    the run knows it, and its probability. The model is the run's export, with whatever preprocessing that has. A model
    that would run code or open files is refused.
    """
    if kind is not None and kind not in _KINDS:
        raise UsageError("there is no such kind", key="--kind", received=kind, remedy=nearest(kind, _KINDS))
    from everstep.trained import check_output

    check_output(output)
    with opened(local_run(run, checkpoint)) as found:
        run_models.choose_backend_of(found, backend)
        if checkpoint is not None and found.directory is not None:
            print(f"predicting with {choose(found.directory, checkpoint).description}", file=sys.stderr)
        import_modules(imports or ())
        if input_ is None:
            _require_recorded(found, run)
        with quiet():
            from everstep.trained import PredictOptions, write_predictions
        predictor = run_models.quietly(lambda: _predictor(found, checkpoint, imports))
        wanted = PredictOptions(batch_size, kind, probabilities, tuple(without or ()), resize)
        data = _validation_data(found, predictor) if input_ is None else input_
        count = write_predictions(predictor, data, output, wanted, found.record)
    print_last(f"{output}: {count} rows")


def _require_recorded(found: Found, run: str) -> None:
    """Refuses a run without `--input` whose record does not name its data."""
    if recorded_source(found.record or {}) is None:
        raise UsageError(
            "is missing, and the record of the run names no data that can be read again",
            key="--input",
            remedy=f"name the data: everstep predict {run} --input new.npz --output answers.csv",
        )


def _validation_data(found: Found, predictor: Any) -> Any:
    """Returns the inputs that a run was validated on; prints which these are."""
    from everstep.trained import RecordedData, RecordedInputs

    data = RecordedData(found.record or {}, predictor.specs)
    print(f"on the validation data of the run, {data.description}", file=sys.stderr)
    return RecordedInputs(data)


def _predictor(found: Found, checkpoint: str | None, imports: list[str] | None) -> Any:
    from everstep.trained import KerasPredictor, load_run_checkpoint, predictor_of

    if found.model is not None or found.directory is None:
        return predictor_of(found, checkpoint)
    if flow := (found.record or {}).get("flow"):
        raise UsageError(
            "has no model, as its flow did not finish",
            key="RUN",
            received=str(found.directory),
            remedy=f"resume it: everstep flow {flow.get('task', 'TASK')}",
        )
    model = run_models.rebuild_model(found.directory, imports)
    load_run_checkpoint(model, found.directory, checkpoint or "last")
    return KerasPredictor(model)
