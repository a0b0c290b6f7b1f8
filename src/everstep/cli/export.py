"""`everstep export`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.checkpoint.remote import is_url
from everstep.cli import completion, options, run_models
from everstep.cli.command import new_app
from everstep.cli.output import quiet
from everstep.cli.resolving import import_modules
from everstep.config import get_task
from everstep.engine import backend as backends
from everstep.errors import TrainingError, UsageError
from everstep.run import Chosen, choose
from everstep.trained import Found, find, local_run

app = new_app()

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, its URL, or a run's id.", autocompletion=completion.runs)
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="Where to; export-STEP in the run by default, export for its end."),
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format", metavar="NAME", help="keras, saved_model, torch, preset, adapter or transformers; repeatable."
    ),
]

_MAX_NAME = 100  # characters of a folder's name that lists steps


@app.command(epilog="Example: everstep export runs/mnist-local-5f2c7a90b1 --checkpoint best --out serving/digits")
def export(
    run: Run,
    checkpoint: options.Checkpoint = None,
    out: Out = None,
    formats: Formats = None,
    backend: options.Backend = None,
    imports: options.Imports = None,
) -> None:
    """Write the model of a run for others to load.

    model.keras for Keras on any backend; saved_model for TensorFlow Serving, or on PyTorch model.pt2; or only those
    that --format names. Each is loaded back and compared with the model before it takes its name. The weights are
    those of the newest checkpoint, or of the one that --checkpoint names.
    """
    found = find(local_run(run, checkpoint))
    if found.directory is None:
        raise UsageError("an exported model has no checkpoints", key="RUN", received=run, remedy="name a run directory")
    chosen = choose(found.directory, checkpoint or "last")
    place = Path(out) if out is not None else _default_place(found, chosen, run)
    if place.resolve() == (found.directory / "export").resolve() and place != _default_place(found, chosen, run):
        raise UsageError(
            f"that folder is for the end of the run, and {chosen} is not its end",
            key="--out",
            received=out,
            remedy="choose another folder",
        )
    run_models.choose_backend_of(found, backend)
    if checkpoint is not None:
        print(f"exporting {chosen.description}", file=sys.stderr)
    import_modules(imports or ())
    written = run_models.quietly(lambda: _export_chosen(found, chosen, place, imports, formats))
    if not written:
        raise TrainingError(
            f"{chosen} cannot be exported in any format", key="RUN", received=run, remedy="see the lines above"
        )
    print(*written, sep="\n")


def _default_place(found: Found, chosen: Chosen, name: str) -> Path:
    """Returns the folder of an export: `export` for the end of a finished run, `export-STEP` for other checkpoints."""
    directory, record = found.directory or Path(), found.record or {}
    if is_url(name):
        raise UsageError(
            "exports are written to this machine, and the run is at a URL", key="--out", remedy="name a folder here"
        )
    if (record.get("status"), [record.get("step")]) == ("finished", chosen.steps):
        return directory / "export"
    folder = f"export-{chosen.name}"
    if len(folder) > _MAX_NAME:
        raise UsageError(
            f"{len(chosen.steps)} steps are too many to name a folder after", key="--out", remedy="name the folder"
        )
    return directory / folder


def _export_chosen(
    found: Found, chosen: Chosen, place: Path, imports: Sequence[str] | None, formats: Sequence[str] | None
) -> list[Path]:
    """Writes the model of a run with the weights of a checkpoint; returns what was written."""
    with quiet():
        from everstep.trained import export_run
    return export_run(found, chosen, place, rebuild=lambda: _rebuild(found, imports), formats=formats)


def _rebuild(found: Found, imports: Sequence[str] | None) -> tuple[Any, Any]:
    """Builds the model of a run by its experiment, and a batch for it from the experiment's data."""
    from everstep.export import sample_inputs
    from everstep.loop import create_trainer
    from everstep.task import unpack

    params = run_models.experiment_of(found.directory or Path(), imports).params
    backends.prepare(params.runtime.seed)
    trainer = create_trainer(params, get_task(params.task), train=False, evaluate=True)
    trainer.close()
    return trainer.model, sample_inputs(trainer.model, unpack(trainer.example)[0])
