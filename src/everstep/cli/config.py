"""`everstep config`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.request import Request, resolve
from everstep.config import Layer, dialect

app = new_app()


@app.command(epilog="Example: everstep config mnist/mlp trainer.train_steps=500 > my.yaml")
def config(
    experiment: options.Experiment = None,
    overrides: options.Overrides = None,
    name: options.ExperimentName = None,
    config_file: options.ConfigFiles = None,
    params_override: options.ParamsOverride = None,
    backend: options.Backend = None,
    seed: options.Seed = None,
    imports: options.Imports = None,
) -> None:
    """Print an experiment's resolved configuration.

    As YAML that --config-file reads. A comment says where a value came from, if not the experiment's own.
    """
    request = Request(experiment, overrides, name, config_file, params_override, backend, seed, imports)
    resolved = resolve(request)
    print(dialect.dump({"experiment": resolved.experiment}), end="")
    print("\n".join(_lines(resolved.params.as_dict(), resolved.layers)))


def _lines(tree: Mapping[str, Any], layers: Iterable[Layer], indent: str = "") -> Iterator[str]:
    """Yields a tree as YAML, each value followed by the last layer that set it."""
    for key, value in tree.items():
        below = [Layer(layer.origin, layer.tree[key]) for layer in layers if key in layer.tree]
        nested = [layer for layer in below if isinstance(layer.tree, Mapping)]
        if isinstance(value, Mapping) and value:
            yield f"{indent}{dialect.dump({key: None}).split(':')[0]}:"
            yield from _lines(value, nested, f"{indent}  ")
        else:
            yield from _commented(dialect.dump({key: value}).splitlines(), below, indent)


def _commented(lines: list[str], setters: list[Layer], indent: str) -> Iterator[str]:
    origin = " ".join(setters[-1].origin.split()) if setters else ""
    if origin and len(lines) > 1:
        yield f"{indent}# {origin}"
    for line in lines:
        yield f"{indent}{line}" + (f"  # {origin}" if origin and len(lines) == 1 else "")
