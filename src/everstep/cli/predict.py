"""`everstep predict`."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.ending import print_last
from everstep.cli.quiet import quiet
from everstep.cli.request import resolve
from everstep.cli.user_modules import import_modules
from everstep.config import get_task
from everstep.engine import backend as backends
from everstep.errors import UsageError, nearest
from everstep.inference.finding import Found
from everstep.inference.opening import opened
from everstep.remote.urls import is_url
from everstep.remote.working import local_view

app = new_app()

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, a run's id, a .keras file or a SavedModel.")]
Input = Annotated[
    str, typer.Option("--input", metavar="FILE", help=".npz, .npy, .csv, .parquet, .tfrecord, or a folder of images.")
]
Output = Annotated[str, typer.Option("--output", metavar="FILE", help="A .csv or .parquet file for the rows.")]
Checkpoint = Annotated[int | None, typer.Option(metavar="STEP", help="Take the weights of this step.")]
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
    checkpoint: Checkpoint = None,
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
    with opened(str(local_view(run)) if is_url(run) else run) as found:
        _choose(backend, found)
        import_modules(imports or ())
        with quiet():
            inference = importlib.import_module("everstep.inference.predicting")
            choice = importlib.import_module("everstep.inference.inputs").Choice(tuple(without or ()), resize)
        predictor = _quietly(lambda: _predictor(inference, found, checkpoint, imports))
        wanted = inference.Wanted(batch_size, kind, probabilities, choice)
        count = inference.predict(predictor, input_, output, wanted, found.record)
    print_last(f"{output}: {count} rows")


def _choose(asked: str | None, found: Found) -> None:
    """Takes the backend that the run was trained on, where it is installed and nobody asks for another."""
    recorded = found.backend if found.backend in backends.installed() else None
    backends.select(asked or recorded, "--backend" if asked else "run.json: backend")


def _quietly(make: Callable[[], Any]) -> Any:
    """Makes something without the backends' chatter; what is wrong is told after it, in its line alone."""
    with quiet():
        try:
            return make()
        except UsageError as error:
            wrong = error
    raise wrong


def _predictor(inference: Any, found: Found, checkpoint: int | None, imports: list[str] | None) -> Any:
    if found.model is not None or found.directory is None:
        return inference.predictor_of(found, checkpoint)
    if flow := (found.record or {}).get("flow"):
        raise UsageError(
            f"{str(found.directory)!r} has no model: its flow did not come to its end; go on with everstep flow "
            f"{flow.get('task', 'TASK')}"
        )
    return _rebuilt(inference, found.directory, checkpoint, imports)


def _rebuilt(inference: Any, directory: Path, checkpoint: int | None, imports: list[str] | None) -> Any:
    """Builds the model of a run that exported none: as its experiment does, with the weights of a checkpoint."""
    stored = directory / "config.yaml"
    if not stored.is_file() or not list(directory.glob("checkpoints/*")):
        raise UsageError(f"{str(directory)!r} has neither an exported model nor a checkpoint: train it first")
    try:
        resolved = resolve(options.Request(config_files=[str(stored)], imports=imports))
    except UsageError as error:
        why = str(error).partition(";")[0]
        raise UsageError(
            f"{str(directory)!r} has no exported model, and cannot be built anew ({why}): name the model that was "
            "exported elsewhere, such as a Training's artifacts_dir, or --import its experiment"
        ) from error
    model = get_task(resolved.params.task).build_model()
    inference.give_checkpoint(model, directory, checkpoint)
    return importlib.import_module("everstep.inference.keras_model").KerasPredictor(model)
