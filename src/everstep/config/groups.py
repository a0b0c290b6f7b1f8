"""Config groups: a directory of alternatives, composed by Hydra.

    conf/
      main.yaml                 defaults: [{task/model: small}, _self_]
      task/model/small.yaml     lands at task.model
      task/model/large.yaml
      experiment/wide.yaml      # @package _global_ at its top; may choose among the other groups

Hydra decides which files take part, in which order and where in the tree: its defaults list. The files are read
here, as all config files are, so that every value keeps its line.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep.config.layer import Layer
from everstep.config.problem import join
from everstep.errors import UsageError, nearest

CHOICE = re.compile(r"(?P<add>\+\+?)?(?P<group>\w[\w/-]*)(?P<package>@[\w.]+)?=(?P<option>[\w./-]+)")
DROP = re.compile(r"~(?P<group>\w[\w/-]*)")


def is_choice(text: str, directory: Path) -> bool:
    """Tells whether an override chooses in a group: `task/model=large`, `+experiment=wide`, `~opt`."""
    match = CHOICE.fullmatch(text.strip()) or DROP.fullmatch(text.strip())
    return match is not None and (directory / match["group"]).is_dir()


def compose(directory: Path, name: str | None, choices: Sequence[str]) -> list[Layer]:
    """Returns the values of the files that take part, in order.

    Args:
      directory: Where the groups are.
      name: The file that the composition starts from, without suffix; None: choices alone.
      choices: Overrides of which `is_choice` holds. `group=option` adds a group that no file chooses yet.

    Raises:
      UsageError: A choice there is not, or a defaults list that cannot be followed.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(config_dir=str(directory.resolve()), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            overrides = [*_spelled(loader, name, choices)]
            return [*_layers(directory, _defaults(loader, name, overrides))]
    except (HydraException, OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{_place(directory, name)}: {_short(error)}") from None


def _spelled(loader: Any, name: str | None, choices: Iterable[str]) -> Iterator[str]:
    """Yields the choices with the plus that Hydra wants for a group which no file has chosen in."""
    chosen = {default.override_key for default in _defaults(loader, name, [])} if name else set()
    for text in choices:
        match = CHOICE.fullmatch(text.strip())
        if match is None:
            yield text.strip()
            continue
        _require_option(loader, match["group"], match["option"], text)
        key = match["group"] + (match["package"] or "")
        yield f"{'' if key in chosen else '+'}{key}={match['option']}"


def _require_option(loader: Any, group: str, option: str, text: str) -> None:
    options = loader.get_group_options(group)
    if option not in options:
        raise UsageError(f"{text.strip()}: no option {option!r} in group {group!r}; {nearest(option, options)}")


def _defaults(loader: Any, name: str | None, overrides: list[str]) -> list[Any]:
    from hydra.types import RunMode

    found = loader.compute_defaults_list(name, overrides, RunMode.RUN).defaults
    return [default for default in found if not (default.config_path or "hydra").startswith("hydra")]


def _layers(directory: Path, defaults: Iterable[Any]) -> Iterator[Layer]:
    for default in defaults:
        path = _file(directory, default.config_path)
        layer = Layer.from_file(path)
        values = {key: value for key, value in layer.tree.items() if key != "defaults"}
        yield _at(default.package or "", Layer(layer.origin, values, layer.lines))


def _file(directory: Path, config_path: str) -> Path:
    path = directory / config_path
    return path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml")


def _at(package: str, layer: Layer) -> Layer:
    """Returns a file's values at their place in the whole tree."""
    tree: Any = layer.tree
    for part in reversed(package.split(".") if package else []):
        tree = {part: tree}
    return Layer(layer.origin, tree, {join(package, path): line for path, line in layer.lines.items()})


def _place(directory: Path, name: str | None) -> str:
    return str(directory / f"{name}.yaml") if name else str(directory)


def _short(error: Exception) -> str:
    """Returns Hydra's message in one line, without the search path that follows it."""
    text = str(error).split("Config search path")[0]
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":;", ":")
