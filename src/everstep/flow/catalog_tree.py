"""The catalog of a flow: its files, what overrides change in it, and what a run has loaded from it."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.catalog import Catalog, entries
from everstep.catalog import sources as catalog_sources
from everstep.config import ConfigError, Layer, Problem
from everstep.config.layer import walk
from everstep.errors import nearest


def read_catalog(files: Sequence[Path], given: Iterable[Layer]) -> tuple[dict[str, Any], bool]:
    """Returns what the files say with overrides over it, and whether there were some.

    Args:
      files: The base file and the local one, as far as they exist.
      given: The overrides; those of `catalog` count.

    Raises:
      ConfigError: A name that the catalog has not, with the nearest ones.
    """
    tree = copy.deepcopy(catalog_sources.read(files)[0]) if files else {}
    layers = [layer for layer in given if isinstance(layer.tree.get("catalog"), Mapping)]
    for layer in layers:
        for path, value in walk(layer.tree["catalog"]):
            _edit(tree, path, value, layer)
    return tree, bool(layers)


def _edit(tree: dict[str, Any], path: str, value: Any, layer: Layer) -> None:
    *groups, last = path.split(".")
    held: Any = tree
    for group in groups:
        if group not in held and layer.edit == "add":
            held[group] = {}
        held = _below(held, group, tree, path, layer)
    if layer.edit != "add":
        _below(held, last, tree, path, layer, leaf=True)
    if layer.edit == "drop":
        del held[last]
    elif isinstance(value, str) and isinstance(held.get(last), Mapping):
        held[last] = {**held[last], "filepath": value}
    else:
        held[last] = value


def _below(held: Any, name: str, tree: Mapping[str, Any], path: str, layer: Layer, leaf: bool = False) -> Any:
    below = held.get(name) if isinstance(held, Mapping) else None
    if isinstance(below, Mapping) or (leaf and isinstance(held, Mapping) and name in held):
        return below
    known = [key for key, _ in walk(tree)]
    names = {key.rpartition(".")[0] if key.endswith((".filepath", ".type")) else key for key in known}
    raise ConfigError(
        [Problem(f"catalog.{path}", f"the catalog has no such name; {nearest(path, names)}", layer.origin)]
    )


def open_catalog(tree: Mapping[str, Any], files: Sequence[Path], edited: bool, root: Path) -> Catalog:
    """Returns the catalog that files describe; where overrides have changed it, the one that a tree describes.

    Raises:
      UsageError: It is no catalog; each finding with its key, its file and line.
    """
    if not edited:
        return Catalog.from_files(list(files), root)
    return Catalog(entries.parsed(tree, lambda path: "catalog.yaml with overrides"), root)


class UsedCatalog:
    """A catalog that notes what is loaded from it, with its fingerprint; all else is the catalog's own.

    Attributes:
      used: The fingerprint of each name that was loaded.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.used: dict[str, dict[str, Any]] = {}

    def load(self, name: str, version: str | int | None = None) -> Any:
        """Returns the data of a name.

        Raises:
          UsageError: There is no such name, with the nearest ones; or no such data, with its absolute path.
        """
        value = self._catalog.load(name, version)
        self.used[name] = dict(self._catalog.fingerprint(name, version))
        return value

    def path(self, name: str, version: str | int | None = None) -> Path:
        """Returns where the data of a name is on this machine, for code that opens it itself; as good as loaded.

        Raises:
          UsageError: As `load`.
        """
        found = self._catalog.path(name, version)
        self.used[name] = dict(self._catalog.fingerprint(name, version))
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._catalog

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._catalog, name)
