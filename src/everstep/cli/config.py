"""`everstep config`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from everstep import redaction
from everstep.cli import options
from everstep.cli.annotated_yaml import annotated_yaml
from everstep.cli.commands import new_app
from everstep.cli.origins import Origins
from everstep.cli.output import json_text
from everstep.cli.request import Resolved, resolve
from everstep.config import load_file
from everstep.config.difference import ABSENT, Change, differences
from everstep.config.schema import json_schema
from everstep.config.sources import HEADER
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, read_experiment, with_schedule
from everstep.run.stored import changes_since

app = new_app()

_EXAMPLES = """\b
Example: everstep config mnist/mlp trainer.train_steps=500 > my.yaml
         everstep config --config-file my.yaml --diff factory
         everstep config mnist/mlp --diff runs/mnist-mlp-5f2c7a90b1
         everstep config mnist/mlp --schema > mnist.schema.json

\b
An editor then completes the keys of a file whose first line is
  # yaml-language-server: $schema=mnist.schema.json"""

Diff = Annotated[
    str | None,
    typer.Option(metavar="OTHER", help="Print only what differs from factory, a run directory or a config file."),
]
AsSchema = Annotated[bool, typer.Option("--schema", help="Print a JSON schema of the experiment's config files.")]


@app.command(epilog=_EXAMPLES)
@options.takes_request()
def config(request: options.Request, diff: Diff = None, schema: AsSchema = False) -> None:
    """Print an experiment's resolved configuration.

    As YAML that --config-file reads. The comment after a value says where it came from: a file and its line, a flag
    or an override, the experiment, or default, which is what its class says.
    """
    if schema and diff is not None:
        raise UsageError(f"--schema and --diff {diff}: each prints something else; give one of them")
    resolved = resolve(request)
    if schema:
        print(json_text(json_schema(resolved.params, resolved.experiment)))
    elif diff is not None:
        print(_diff(_changes(diff, resolved), resolved), end="")
    else:
        print(_listing(resolved))


def _listing(resolved: Resolved) -> str:
    origins = Origins(resolved)
    values = annotated_yaml(redaction.tree(resolved.shown.as_dict()), origins.of)
    header = redaction.tree(resolved.header())
    return f"{annotated_yaml(header, lambda path, value: '')}\n{values}"


def _diff(changes: Iterable[Change], resolved: Resolved) -> str:
    origins = Origins(resolved)
    lines = []
    for change in changes:
        origin = "" if change.new is ABSENT else f"  # {origins.of(change.path, change.new)}"
        lines.append(f"{_shown(change)}{origin}\n")
    return "".join(lines)


def _shown(change: Change) -> Change:
    name = change.path.rpartition(".")[2]
    old, new = (redaction.tree({name: value})[name] for value in (change.old, change.new))
    return Change(change.path, old, new)


def _changes(other: str, resolved: Resolved) -> list[Change]:
    """Returns what differs from the experiment itself, from a run, or from this experiment with a file laid over it."""
    path = Path(other)
    if other == "factory":
        return _changes_from(with_schedule(resolved.factory), resolved.shown)
    if path.is_file():
        return _changes_from(with_schedule(read_experiment(path, lambda: resolved.factory)), resolved.shown)
    if not (path / "config.yaml").is_file():
        what = "there is no config.yaml in it" if path.is_dir() else "no such file or directory"
        raise UsageError(f"--diff {other}: {what}; name a run directory, a config file, or factory")
    stored = load_file(path / "config.yaml")
    return changes_since({key: value for key, value in stored.items() if key not in HEADER}, resolved.shown)


def _changes_from(other: ExperimentConfig, params: ExperimentConfig) -> list[Change]:
    # A backend that is left open there would be chosen as it was here.
    backend = other.runtime.backend or params.runtime.backend
    return differences(other.replace(runtime={"backend": backend}), params)
