"""Groups: a directory of alternative files, composed by Hydra.

    conf/
      main.yaml                 defaults: [{task/model: small}, _self_]
      task/model/small.yaml     its values belong to task.model
      task/model/large.yaml
      experiment/wide.yaml      # @package _global_ at its top; may choose among the other groups

Hydra's defaults list decides which files are used, in which order and where in the tree. The files are read here, as
all config files are, so that every value keeps its line.
"""

import dataclasses
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep.config.layers import Layer
from everstep.errors import UsageError, nearest

_CHOICE = re.compile(r"(?P<add>\+\+?)?(?P<group>\w[\w/-]*)(?P<package>@[\w.]+)?=(?P<option>[\w./-]+)")
_DROPPED_GROUP = re.compile(r"~(?P<group>\w[\w/-]*)")


def is_choice(text: str, directory: Path) -> bool:
    """Returns whether an override chooses in a group: `task/model=large`, `+experiment=wide`, `~opt`."""
    match = _CHOICE.fullmatch(text.strip()) or _DROPPED_GROUP.fullmatch(text.strip())
    return match is not None and (directory / match["group"]).is_dir()


def compose_groups(directory: Path, name: str | None, choices: Sequence[str]) -> list[Layer]:
    """Returns the values of the files that are used, in order.

    Args:
      directory: Where the groups are.
      name: The file that the composition starts from, without suffix; None: choices alone.
      choices: Overrides of which `is_choice` holds. `group=option` adds a group that no file chooses yet.

    Raises:
      UsageError: An unknown choice, or a defaults list that cannot be followed.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(config_dir=str(directory.resolve()), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            overrides = list(_hydra_choices(loader, name, choices))
            return [_group_layer(directory, default) for default in _defaults_list(loader, name, overrides)]
    except (HydraException, OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        text = str(error).split("Config search path")[0]
        reason = "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":;", ":")
        raise UsageError(reason, key=str(directory / f"{name}.yaml" if name else directory)) from None


def _hydra_choices(loader: Any, name: str | None, choices: Iterable[str]) -> Iterator[str]:
    """Yields the choices, with the plus that Hydra requires for a group in which no file chooses yet."""
    chosen = {default.override_key for default in _defaults_list(loader, name, [])} if name else set()
    for text in map(str.strip, choices):
        match = _CHOICE.fullmatch(text)
        if match is None:
            yield text
            continue
        options = loader.get_group_options(match["group"])
        if match["option"] not in options:
            reason = f"no option {match['option']!r} in group {match['group']!r}"
            raise UsageError(reason, key=text, remedy=nearest(match["option"], options))
        key = match["group"] + (match["package"] or "")
        yield f"{'' if key in chosen else '+'}{key}={match['option']}"


def _defaults_list(loader: Any, name: str | None, overrides: list[str]) -> list[Any]:
    from hydra.types import RunMode

    found = loader.compute_defaults_list(name, overrides, RunMode.RUN).defaults
    return [default for default in found if not (default.config_path or "hydra").startswith("hydra")]


def _group_layer(directory: Path, default: Any) -> Layer:
    """Returns a file's values at their place in the whole tree."""
    path = directory / default.config_path
    layer = Layer.from_file(path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml"))
    values = {key: value for key, value in layer.tree.items() if key != "defaults"}
    return dataclasses.replace(layer, tree=values).moved("", default.package or "")
