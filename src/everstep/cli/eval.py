"""`everstep eval`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.output import aligned, json_text, number
from everstep.cli.request import resolve
from everstep.cli.running import run
from everstep.errors import UsageError
from everstep.remote.urls import is_url
from everstep.remote.working import local_view

app = new_app()

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A run directory, or an experiment with --model-dir.")]
ModelDir = Annotated[str | None, typer.Option(metavar="DIR", help="The run directory, where TARGET is an experiment.")]


@app.command(name="eval", epilog="Example: everstep eval runs/mnist-local-5f2c7a90b1 --json")
@options.takes_request("experiment", "name", "limit_train", "overfit_batches", "sanity_eval")
def evaluate(request: options.Request, target: Target, model_dir: ModelDir = None, json: options.Json = False) -> None:
    """Evaluate the newest checkpoint of a run.

    A run directory brings its experiment, configuration and backend with it.
    """
    experiment, directory, stored = _find(target, model_dir)
    files = [*stored, *(request.config_files or ())]
    resolved = resolve(dataclasses.replace(request, experiment=experiment, config_files=files))
    logs = run(resolved, "eval", directory)
    print(json_text(logs) if json else aligned([(name, number(value)) for name, value in logs.items()]))


def _find(target: str, model_dir: str | None) -> tuple[str | None, Path, list[str]]:
    """Returns the experiment, if TARGET is one, the run directory, and the configuration stored there."""
    target, model_dir = _local(target), model_dir and _local(model_dir)
    stored = Path(target, "config.yaml")
    if stored.is_file():
        if model_dir is not None and Path(model_dir).resolve() != Path(target).resolve():
            raise UsageError(f"--model-dir {model_dir}: {target!r} is a run directory as well; name one of them")
        return None, Path(target), [str(stored)]
    if model_dir is not None:
        return target, _existing(model_dir), []
    if Path(target).is_dir():
        raise UsageError(f"{target!r} is not a run directory: there is no config.yaml in it")
    raise UsageError(f"{target!r} is no run directory; if it is an experiment, add --model-dir DIR")


def _local(path: str) -> str:
    """Returns where a run is on this machine; one at a URL is fetched."""
    return str(local_view(path)) if is_url(path) else path


def _existing(model_dir: str) -> Path:
    if not Path(model_dir).is_dir():
        raise UsageError(f"--model-dir {model_dir}: no such directory; name one that training has written")
    return Path(model_dir)
