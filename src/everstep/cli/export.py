"""`everstep export`."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import options, trained
from everstep.cli.commands import new_app
from everstep.cli.local_runs import local_run
from everstep.cli.quiet import quiet
from everstep.cli.user_modules import import_modules
from everstep.errors import TrainingError, UsageError
from everstep.inference.finding import Found, find
from everstep.remote.urls import is_url
from everstep.run.chosen import Chosen, choose

app = new_app()

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, its URL, or a run's id.")]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="Where to; export-STEP in the run by default, export for its end."),
]

_LONGEST = 100  # of a folder's name that is made of steps


@app.command(epilog="Example: everstep export runs/mnist-local-5f2c7a90b1 --checkpoint best --out serving/digits")
def export(
    run: Run,
    checkpoint: options.Checkpoint = None,
    out: Out = None,
    backend: options.Backend = None,
    imports: options.Imports = None,
) -> None:
    """Write the model of a run for others to load.

    model.keras for Keras on any backend; saved_model for TensorFlow Serving, or on PyTorch model.pt2. Each is loaded
    back and compared with the model before it takes its name. The weights are those of the newest checkpoint, or of
    the one that --checkpoint names.
    """
    found = find(local_run(run, checkpoint))
    if found.directory is None:
        raise UsageError(f"{run!r} is no run: an exported model has no checkpoints; name the run directory")
    chosen = choose(found.directory, checkpoint or "last")
    place = Path(out) if out is not None else _default(found, chosen, run)
    if place.resolve() == (found.directory / "export").resolve() and place != _default(found, chosen, run):
        raise UsageError(f"--out {out}: that is the place of the run's end, and {chosen} is not: choose another")
    trained.choose_backend(backend, found)
    import_modules(imports or ())
    with quiet():
        module = importlib.import_module("everstep.cli.exporting")
    written = trained.quietly(lambda: module.export_chosen(found, chosen, place, imports))
    if not written:
        raise TrainingError(f"{chosen} of {run} can be exported in no form; the lines above say why")
    print(*written, sep="\n")


def _default(found: Found, chosen: Chosen, name: str) -> Path:
    """Returns where an export goes: only the end of a run that is finished has the place of the run's own export."""
    directory, record = found.directory or Path(), found.record or {}
    if is_url(name):
        raise UsageError(f"--out: {name} is fetched to be looked at: say where to write the export on this machine")
    if (record.get("status"), [record.get("step")]) == ("finished", chosen.steps):
        return directory / "export"
    folder = f"export-{chosen.name}"
    if len(folder) > _LONGEST:
        raise UsageError(f"--out: {len(chosen.steps)} steps are too many to name a folder after: say where to write")
    return directory / folder
