"""From a command line to a resolved configuration, with the backend chosen on the way.

The order matters. First, values are read from files, flags and overrides, without Keras; they select the backend. Then
the user's modules are imported, which may import Keras. These register the experiment to which the values are applied.
"""

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.cli.command import refuse_script
from everstep.cli.options import ExperimentRequest
from everstep.cli.output import quiet
from everstep.config import (
    Bindings,
    Config,
    Layer,
    allowed,
    apply_layers,
    dialect,
    get_exp_config,
    read_bindings,
    read_sources,
    refuse_rivals,
    validate,
    walk,
)
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig, as_experiment, with_learning_rate_length


@dataclasses.dataclass
class Resolved:
    """A resolved request.

    Attributes:
      experiment: The experiment's name.
      params: Its configuration, validated, with the backend that was chosen.
      factory: The configuration as the experiment's own function returned it.
      layers: The values that were applied to it, later ones winning.
      imports: The modules that were imported for it.
      gin: The gin bindings in force.
    """

    experiment: str
    params: ExperimentConfig
    factory: ExperimentConfig
    layers: list[Layer]
    imports: list[str]
    gin: Bindings

    @property
    def shown(self) -> ExperimentConfig:
        """The configuration as it is printed: with the length of a learning rate that follows `trainer.train_steps`."""
        return with_learning_rate_length(self.params)

    def header(self) -> dict[str, Any]:
        """Returns what is stored beside the values, so that a stored configuration repeats the request."""
        own = dict(walk(self.factory.as_dict()))
        header = {
            "experiment": self.experiment,
            "imports": self.imports,
            "gin": self.gin.text(),
            "added": [path for path in self._edited("add") if path not in own],
            "dropped": self._edited("drop"),
        }
        return {key: value for key, value in header.items() if value}

    def _edited(self, edit: str) -> list[str]:
        return [path for layer in self.layers if layer.edit == edit for path, _ in walk(layer.tree)]


def resolve(request: ExperimentRequest, strict: bool = True, plain: bool = False) -> Resolved:
    """Chooses the backend and composes the configuration.

    Args:
      request: What the user typed.
      strict: Whether keys that the experiment does not have are errors; else they are skipped, with a warning, and a
        config that declares no fields takes them.
      plain: Whether the experiment may be a `Config` that declares no fields, for a program that reads it by itself.

    Raises:
      UsageError: The request cannot be resolved; nothing was done but to import modules.
    """
    words = [*([request.experiment] if request.experiment is not None else []), *(request.overrides or ())]
    overrides = [*(request.params_override or ()), *_values_in(words)]
    found = read_sources(request.config_files or (), overrides, request.config_dir)
    is_stored = bool(request.config_files)
    name = _one_name([*_given_names(words, request.name), *found.header["experiment"]], is_stored)
    refuse_script(name, "EXPERIMENT")
    gin = read_bindings(request.gin_files or (), request.gin_params or (), stored=found.header["gin"])
    flags = _flags(request)
    ambient, chosen = _choose_backend([*found.files, *_gin_backend(gin), *flags, *found.overrides])
    imports = _import_all(request.imports or (), found.header["imports"])
    gin.import_modules()
    factory = get_exp_config(name)
    if plain and type(factory) is Config:
        ambient = []  # it may have no section for the backend
    else:
        factory = as_experiment(name, factory)
    if ambient:
        _require_backend(name, factory, chosen)
    if not strict:
        found.files, found.overrides = _known_only(found.files), _known_only(found.overrides)
    refuse_rivals(factory, found.overrides)
    layers = [*ambient, *found.files, *gin.layers(apply_layers(factory, found.files)), *flags, *found.overrides]
    params = apply_layers(factory, layers)
    validate(params, layers)
    gin.apply()
    return Resolved(name, params, factory, layers, imports, gin)


def _known_only(layers: Sequence[Layer]) -> list[Layer]:
    return [dataclasses.replace(layer, edit="set_known") if layer.edit == "set" else layer for layer in layers]


def _given_names(words: Sequence[str], option: str | None) -> list[tuple[str, str]]:
    given = [(words[0], "the command line")] if words and _is_name(words[0]) else []
    return given + ([(option, "--experiment")] if option else [])


def _one_name(names: Sequence[tuple[str, str]], is_stored: bool) -> str:
    """Returns the experiment's name, which all that give one must agree on.

    Args:
      names: The names that are given, and by what.
      is_stored: Whether there is a configuration file that may have had one.
    """
    if not names and not is_stored:
        raise UsageError(
            "none is given",
            key="EXPERIMENT",
            remedy="`everstep experiments` lists them; a script with everstep.fit needs no command: python train.py",
        )
    if not names:
        raise UsageError(
            "none is given, on the command line or in a stored config.yaml (runs that Python started have none)",
            key="EXPERIMENT",
            remedy='`everstep experiments` lists them; in Python: run_experiment(task, params, RUN, "eval")',
        )
    (name, origin), *others = names
    for other, elsewhere in others:
        if other != name:
            raise UsageError(
                f"{origin} says {name!r}, but {elsewhere} says {other!r}", key="experiment", remedy="keep one"
            )
    return name


_FLAGS = {
    "backend": ("runtime", "backend"),
    "seed": ("runtime", "seed"),
    "limit_train": ("task", "train_data", "limit_batches"),
    "limit_eval": ("task", "validation_data", "limit_batches"),
    "overfit_batches": ("trainer", "overfit_batches"),
    "sanity_eval": ("trainer", "sanity_validation_steps"),
}
"""Options that are short for a key."""


def _flags(request: ExperimentRequest) -> list[Layer]:
    given = {option: getattr(request, option) for option in _FLAGS}
    for option, text in given.items():
        if text == "":
            raise UsageError("expected a value", key=f"--{option.replace('_', '-')}", received="")
    return [
        Layer(f"--{option.replace('_', '-')} {text}", _nested(_FLAGS[option], dialect.plain(text)))
        for option, text in given.items()
        if text is not None
    ]


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    return {keys[0]: _nested(keys[1:], value) if len(keys) > 1 else value}


def _values_in(words: Sequence[str]) -> list[str]:
    values = list(words[1:] if words and _is_name(words[0]) else words)
    for word in values:
        if _is_name(word):
            raise UsageError(
                "unexpected argument",
                key="KEY=VALUE",
                received=word,
                remedy="write values as key=value: trainer.train_steps=100",
            )
    return values


def _is_name(word: str) -> bool:
    return "=" not in word and not word.startswith("~")


def _gin_backend(gin: Bindings) -> list[Layer]:
    name = gin.backend()
    return [] if name is None else [Layer("gin", _backend_tree(name))]


def _backend_tree(name: str) -> dict[str, Any]:
    return {"runtime": {"backend": name}}


def _choose_backend(layers: Sequence[Layer]) -> tuple[list[Layer], str]:
    """Selects the backend; returns it, and a layer with its origin if none of the given layers sets it."""
    named, ambient = _backend_in(layers), os.environ.get("KERAS_BACKEND")
    chosen = backend.select(named)
    origin = "KERAS_BACKEND" if ambient else "the backend installed here"
    return [] if named else [Layer(origin, _backend_tree(chosen))], chosen


def _backend_in(layers: Iterable[Layer]) -> str | None:
    """Returns the last `runtime.backend` in the layers; anything but text is left to the validator."""
    found = None
    for layer in layers:
        runtime = layer.tree.get("runtime")
        if isinstance(runtime, Mapping) and "backend" in runtime:
            found = runtime["backend"]
    return found if isinstance(found, str) else None


def _require_backend(name: str, factory: ExperimentConfig, chosen: str) -> None:
    specified = factory.runtime.backend
    if specified not in (None, chosen):
        raise UsageError(
            f"experiment {name!r} specifies {specified!r}, but the backend is chosen before an experiment is imported",
            key="runtime.backend",
            remedy=f"pass --backend {specified}",
        )


def _import_all(given: Sequence[str], stored: Sequence[tuple[Any, str]]) -> list[str]:
    """Imports the modules of `--import`, and those of stored configurations that the project allows."""
    import_modules(given)
    names = list(given)
    for modules, origin in stored:
        for module in modules:
            if module not in names:
                try:
                    allowed.require_module(module)
                except UsageError as error:
                    remedy = "; or ".join(filter(None, [error.remedy, f"pass --import {module}"]))
                    raise UsageError(
                        error.reason, key="imports", received=error.received, remedy=remedy, origin=origin
                    ) from None
                import_modules([module], f"imports in {origin}")
                names.append(module)
    return names


def import_modules(names: Iterable[str], origin: str = "--import") -> None:
    """Imports the user's modules, from the current directory as well as from installed packages.

    Args:
      names: The modules' dotted names.
      origin: What specifies them, for errors.

    Raises:
      UsageError: There is no such module.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if name.endswith(".py"):
            parts = Path(name).with_suffix("").parts
            module = ".".join(parts) if all(part.isidentifier() for part in parts) else parts[-1]
            raise UsageError(
                "is a file, expected a module", key=origin, received=name, remedy=f"write --import {module}"
            )
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(
                "is no module name", key=origin, received=name, remedy="write package.module, no slash, no .py"
            )
        try:
            with quiet():  # it may import a backend
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # found, but it imports something that is not there
            raise UsageError(
                f"there is no such module in {os.getcwd()} or in the installed packages", key=origin, received=name
            ) from error
