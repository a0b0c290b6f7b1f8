"""`everstep config`: a resolved configuration as YAML, with the origin of each value as a comment."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from everstep import redaction
from everstep.cli import options
from everstep.cli.command import new_app
from everstep.cli.resolving import Resolved, resolve
from everstep.cli.sharding_table import sharding_table
from everstep.config import (
    ABSENT,
    HEADER,
    Change,
    Config,
    at_default,
    differences,
    in_line,
    is_below,
    json_schema,
    last_setter,
    load_file,
    walk,
)
from everstep.errors import UsageError, join
from everstep.experiment_config import ExperimentConfig, read_experiment, with_learning_rate_length
from everstep.run import changes_since, named_run
from everstep.storage import json_text

app = new_app()

_EXAMPLES = """\b
Example: everstep config mnist/mlp trainer.train_steps=500 > my.yaml
         everstep config --config-file my.yaml --diff factory
         everstep config mnist/mlp --diff runs/mnist-mlp-5f2c7a90b1
         everstep config mnist/mlp --schema > mnist.schema.json
         everstep config mnist/mlp --sharding runtime.sharding=fsdp --backend jax

\b
An editor then completes the keys of a file whose first line is
  # yaml-language-server: $schema=mnist.schema.json"""

Diff = Annotated[
    str | None,
    typer.Option(metavar="OTHER", help="Print only what differs from factory, a run directory or a config file."),
]
AsSchema = Annotated[bool, typer.Option("--schema", help="Print a JSON schema of the experiment's config files.")]

Sharding = Annotated[
    bool, typer.Option("--sharding", help="Print which part of each variable a device will hold, and its bytes (JAX).")
]


@app.command(epilog=_EXAMPLES)
@options.takes_request()
def config(
    request: options.ExperimentRequest, diff: Diff = None, schema: AsSchema = False, sharding: Sharding = False
) -> None:
    """Print an experiment's resolved configuration.

    As YAML that --config-file reads. The comment after a value is its origin: a file and its line, a flag
    or an override, the experiment, or default, the value of its class.
    """
    chosen = {"--schema": schema, "--sharding": sharding, "--diff": diff is not None}
    if len(asked := [name for name, is_set in chosen.items() if is_set]) > 1:
        text = f"{asked[0]} prints something else"
        raise UsageError(text, key=asked[-1], received=diff or True, remedy="give one of them")
    resolved = resolve(request)
    if schema:
        print(json_text(json_schema(resolved.params, resolved.experiment)))
    elif sharding:
        print(sharding_table(resolved.params))
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
    path = Path(named_run(other))
    if other == "factory":
        return _changes_from(with_learning_rate_length(resolved.factory), resolved.shown)
    if path.is_file():
        return _changes_from(with_learning_rate_length(read_experiment(path, lambda: resolved.factory)), resolved.shown)
    if not (path / "config.yaml").is_file():
        reason = "has no config.yaml" if path.is_dir() else "is no file or directory"
        raise UsageError(reason, key="--diff", received=other, remedy="name a run directory, a config file, or factory")
    stored = load_file(path / "config.yaml")
    return changes_since({key: value for key, value in stored.items() if key not in HEADER}, resolved.shown)


def _changes_from(other: ExperimentConfig, params: ExperimentConfig) -> list[Change]:
    # A backend that is left open there would be chosen as it was here.
    backend = other.runtime.backend or params.runtime.backend
    return differences(other.replace(runtime={"backend": backend}), params)


_MAX_LENGTH = 100


class Origins:
    """Returns for a key path where its value came from, as the text of a comment.

    That is `conf.yaml:12`, the flag or the override that set it last; `default` if only its class sets it; the
    experiment's name if its function sets it.
    """

    def __init__(self, resolved: Resolved) -> None:
        self._experiment = resolved.experiment
        self._layers = resolved.layers
        self._factory = dict(walk(resolved.factory.as_dict()))
        self._default = at_default(resolved.params)
        self._gave_way = dict(_gave_way(resolved.shown))
        lengths = resolved.params.trainer.optimizer_config.unset_lengths
        self._lengths = [f"trainer.optimizer_config.{length}" for length in lengths]

    def of(self, path: str, value: Any) -> str:
        """Returns the origin of the value at a key path; of a section, those of all values in it."""
        if isinstance(value, Mapping) and value:
            return ", ".join(dict.fromkeys(self.of(below, leaf) for below, leaf in walk(value, path)))
        return _one_line(redaction.text(self._of_leaf(path, value)))

    def _of_leaf(self, path: str, value: Any) -> str:
        if path in self._lengths and value is not None:
            return "follows trainer.train_steps"
        is_default = is_below(path, self._default)
        if path in self._gave_way and not is_default:
            return self._gave_way[path]
        if setter := last_setter(self._layers, path):
            return setter.origin_of(path)
        if is_default:
            return "default"
        # No layer set it, and it is not the experiment's: a backend that was left open.
        return "chosen here" if self._factory.get(path, value) != value else self._experiment


def _gave_way(config: Config, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the alternatives that are None because another one has a value."""
    for group in config._alternative_groups():
        used = next((name for name in group if getattr(config, name) is not None), None)
        yield from ((join(path, name), f"gives way to {used}") for name in group if used and name != used)
    for below, child in config._children(config._names()):
        yield from _gave_way(child, join(path, below))


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


_MAX_WIDTH = 60
"""Comments line up behind the longest line that is not longer than this."""


class _Line(NamedTuple):
    text: str
    comment: str = ""


def annotated_yaml(tree: Mapping[str, Any], comment: Callable[[str, Any], str]) -> str:
    """Returns a tree as YAML, one value a line.

    Args:
      tree: The values. A list is one value, on one line, unless it holds sections.
      comment: Called with the key path and each value.
    """
    lines = list(_lines(tree, "", comment))
    lengths = [len(line.text) for line in lines if line.comment]
    width = max((length for length in lengths if length <= _MAX_WIDTH), default=0)
    return "\n".join(f"{line.text:<{width}}  # {line.comment}" if line.comment else line.text for line in lines)


def _lines(tree: Mapping[str, Any], path: str, comment: Callable[[str, Any], str]) -> Iterator[_Line]:
    for key, value in tree.items():
        where = join(path, str(key))
        if isinstance(value, Mapping) and value:
            yield _Line(f"{in_line(key)}:")
            yield from _indented(_lines(value, where, comment))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            yield _Line(f"{in_line(key)}:")
            for index, item in enumerate(value):
                yield from _indented(_item(item, f"{where}[{index}]", comment))
        else:
            yield _Line(f"{in_line(key)}: {in_line(value)}", comment(where, value))


def _item(value: Any, path: str, comment: Callable[[str, Any], str]) -> Iterator[_Line]:
    if isinstance(value, Mapping) and value:
        first, *rest = _lines(value, path, comment)
        yield _Line(f"- {first.text}", first.comment)
        yield from _indented(iter(rest))
    else:
        yield _Line(f"- {in_line(value)}", comment(path, value))


def _indented(lines: Iterator[_Line]) -> Iterator[_Line]:
    return (_Line(f"  {line.text}", line.comment) for line in lines)
