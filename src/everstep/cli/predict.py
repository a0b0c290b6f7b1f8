"""`everstep predict`."""

import importlib
from typing import Annotated, Any

import typer

from everstep.cli import options, trained
from everstep.cli.commands import new_app
from everstep.cli.ending import print_last
from everstep.cli.local_runs import local_run
from everstep.cli.quiet import quiet
from everstep.cli.user_modules import import_modules
from everstep.errors import UsageError, nearest
from everstep.inference.finding import Found
from everstep.inference.opening import opened

app = new_app()

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run's id, a .keras file or a SavedModel.")]
Input = Annotated[
    str, typer.Option("--input", metavar="FILE", help=".npz, .npy, .csv, .parquet, .tfrecord, or a folder of images.")
]
Output = Annotated[str, typer.Option("--output", metavar="FILE", help="A .csv or .parquet file for the rows.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Samples at a time.")]
Kind = Annotated[str | None, typer.Option(metavar="KIND", help="classification or regression; by default as it looks.")]
Probabilities = Annotated[bool, typer.Option("--probabilities", help="Write the probability of every class.")]
Without = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="A column or array that is no input, as a label; repeatable.")
]
Resize = Annotated[bool, typer.Option("--resize", help="Make images of another size fit.")]

_KINDS = ("classification", "regression")


@app.command(epilog="Example: everstep predict runs/mnist-local-5f2c7a90b1 --input new.npz --output answers.csv")
def predict(
    run: Run,
    input_: Input,
    output: Output,
    checkpoint: options.Checkpoint = None,
    batch_size: BatchSize = 256,
    kind: Kind = None,
    probabilities: Probabilities = False,
    without: Without = None,
    resize: Resize = False,
    backend: options.Backend = None,
    imports: options.Imports = None,
) -> None:
    """Ask a trained model about new data.

    Writes a row for each sample: id, prediction, and of a classifier the probability of the class predicted. The model
    is the run's export, with whatever preprocessing that has. A model that would run code or open files is refused.
    """
    if kind is not None and kind not in _KINDS:
        raise UsageError(f"--kind: received {kind!r}; {nearest(kind, _KINDS)}")
    importlib.import_module("everstep.inference.writing").check_output(output)
    with opened(local_run(run, checkpoint)) as found:
        trained.choose_backend(backend, found)
        import_modules(imports or ())
        with quiet():
            inference = importlib.import_module("everstep.inference.predicting")
            choice = importlib.import_module("everstep.inference.inputs").Choice(tuple(without or ()), resize)
        predictor = trained.quietly(lambda: _predictor(inference, found, checkpoint, imports))
        wanted = inference.Wanted(batch_size, kind, probabilities, choice)
        count = inference.predict(predictor, input_, output, wanted, found.record)
    print_last(f"{output}: {count} rows")


def _predictor(inference: Any, found: Found, checkpoint: str | None, imports: list[str] | None) -> Any:
    if found.model is not None or found.directory is None:
        return inference.predictor_of(found, checkpoint)
    if flow := (found.record or {}).get("flow"):
        raise UsageError(
            f"{str(found.directory)!r} has no model: its flow did not come to its end; go on with everstep flow "
            f"{flow.get('task', 'TASK')}"
        )
    model = trained.rebuilt(found.directory, imports)
    importlib.import_module("everstep.inference.weights").give_checkpoint(model, found.directory, checkpoint or "last")
    return importlib.import_module("everstep.inference.keras_model").KerasPredictor(model)
