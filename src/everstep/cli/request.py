"""From a command line to a resolved configuration, with the backend chosen on the way.

The order matters. Values are read from files, flags and overrides first, without Keras; they say which
backend to load; only then may the user's modules be imported, for they may import Keras in their first line;
and only those know the experiment that the values are laid over.
"""

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep.cli.quiet import quiet
from everstep.config import Layer, apply_layers, get_exp_config, load_file
from everstep.config.compose import parse_overrides
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig


@dataclasses.dataclass
class Request:
    """What the user typed.

    Attributes:
      experiment: The positional argument, if any; one with `=` in it is an override.
      overrides: `KEY=VALUE` arguments.
      name: `--experiment`.
      config_files: `--config-file`.
      params_override: `--params-override`.
      backend: `--backend`.
      seed: `--seed`.
      imports: `--import`.
    """

    experiment: str | None = None
    overrides: Sequence[str] | None = None
    name: str | None = None
    config_files: Sequence[str] | None = None
    params_override: Sequence[str] | None = None
    backend: str | None = None
    seed: int | None = None
    imports: Sequence[str] | None = None


@dataclasses.dataclass
class Resolved:
    """What the request came to.

    Attributes:
      experiment: The experiment's name.
      params: Its configuration, validated, with the backend that was chosen.
      layers: The values that were laid over the experiment's own, later ones winning.
    """

    experiment: str
    params: ExperimentConfig
    layers: list[Layer]


def resolve(request: Request) -> Resolved:
    """Chooses the backend and composes the configuration.

    Raises:
      UsageError: Something in the request cannot be; nothing was done but to import modules.
    """
    files, names = _read_files(request.config_files or ())
    words = [*([request.experiment] if request.experiment is not None else []), *(request.overrides or ())]
    name = _one_name([*_given_names(words, request.name), *names])
    layers = [*files, *_flags(request), *_overrides(words, request.params_override or ())]
    chosen = backend.select(_backend_in(layers))
    import_modules(request.imports or ())
    return Resolved(name, _composed(name, layers, chosen), layers)


def import_modules(names: Iterable[str]) -> None:
    """Imports the user's modules, from the current directory as well as from installed packages.

    Raises:
      UsageError: There is no such module.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"--import: {name!r} is no module name: write package.module, no slash, no .py")
        try:
            with quiet():  # it may import a backend
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # found, but it imports something that is not there
            raise UsageError(f"--import: no module {name!r} in {os.getcwd()} or in the installed packages") from error


def _read_files(paths: Iterable[str]) -> tuple[list[Layer], list[tuple[str, str]]]:
    """Returns the files' values, and the experiments that files name with where they do."""
    layers, names = [], []
    for path in paths:
        tree = load_file(path)
        if "experiment" in tree:
            name = tree.pop("experiment")
            if not isinstance(name, str) or not name:
                raise UsageError(f"experiment: expected a name, received {name!r} (from {path})")
            names.append((name, path))
        layers.append(Layer(str(path), tree))
    return layers, names


def _given_names(words: Sequence[str], option: str | None) -> list[tuple[str, str]]:
    given = [(words[0], "the command line")] if words and "=" not in words[0] else []
    return given + ([(option, "--experiment")] if option else [])


def _one_name(names: Sequence[tuple[str, str]]) -> str:
    if not names:
        raise UsageError(
            "no experiment is named, on the command line or in a stored config.yaml (runs of everstep.fit name none); "
            "`everstep experiments` lists them"
        )
    (name, origin), *others = names
    for other, elsewhere in others:
        if other != name:
            raise UsageError(f"experiment: {origin} says {name!r}, but {elsewhere} says {other!r}; keep one")
    return name


def _flags(request: Request) -> list[Layer]:
    given = {"backend": request.backend, "seed": request.seed}
    return [
        Layer(f"--{name} {value}", {"runtime": {name: value}}) for name, value in given.items() if value is not None
    ]


def _overrides(words: Sequence[str], params_override: Sequence[str]) -> list[Layer]:
    pairs = words[1:] if words and "=" not in words[0] else words
    for word in pairs:
        if "=" not in word:
            raise UsageError(f"unexpected argument {word!r}: write values as key=value, trainer.train_steps=100")
    return [layer for text in (*params_override, *pairs) for layer in parse_overrides(text)]


def _backend_in(layers: Iterable[Layer]) -> str | None:
    """Returns the last `runtime.backend` in the layers; anything but text is left to the validator."""
    found = None
    for layer in layers:
        runtime = layer.tree.get("runtime")
        if isinstance(runtime, Mapping) and "backend" in runtime:
            found = runtime["backend"]
    return found if isinstance(found, str) else None


def _composed(name: str, layers: Sequence[Layer], chosen: str) -> ExperimentConfig:
    own: Any = get_exp_config(name)
    if not isinstance(own, ExperimentConfig):
        received = type(own).__name__
        raise UsageError(f"experiment {name!r} must return an ExperimentConfig, received {received}")
    params = apply_layers(own, layers)
    if params.runtime.backend not in (None, chosen):
        raise UsageError(
            f"runtime.backend: experiment {name!r} asks for {params.runtime.backend!r}, but the backend is "
            f"chosen before an experiment is imported: pass --backend {params.runtime.backend}"
        )
    params.override({"runtime": {"backend": chosen}})
    params.validate()
    return params
