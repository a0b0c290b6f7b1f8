"""The user's project: where it begins, which modules are its source, and which packages it trusts."""

import importlib.machinery
import importlib.util
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

from everstep.config.problem import show
from everstep.errors import UsageError

_KEYS = {"allow", "allow-pickle"}
_INSTALLED = {"site-packages", "dist-packages"}


def find_root() -> Path:
    """Returns the nearest directory, from the current one upwards, with a `pyproject.toml`; else the current one."""
    here = Path.cwd()
    return next((path for path in (here, *here.parents) if (path / "pyproject.toml").is_file()), here)


def trusted_packages(root: Path) -> tuple[str, ...]:
    """Returns the entries of `[tool.everstep] allow` in the root's `pyproject.toml`.

    Raises:
      UsageError: The file cannot be read, or the entries are not a list of package names.
    """
    path, entries = root / "pyproject.toml", _settings(root).get("allow", [])
    if not isinstance(entries, list) or not all(_is_package(entry) for entry in entries):
        raise UsageError(f'{path}: [tool.everstep] allow must be a list such as ["my_lib"], received {show(entries)}')
    return tuple(entries)


def allows_pickle(root: Path) -> bool:
    """Tells whether the root's `pyproject.toml` says `[tool.everstep] allow-pickle = true`.

    Raises:
      UsageError: The file cannot be read, or says something else than true or false.
    """
    value = _settings(root).get("allow-pickle", False)
    if not isinstance(value, bool):
        raise UsageError(
            f"{root / 'pyproject.toml'}: [tool.everstep] allow-pickle is true or false, received {show(value)}"
        )
    return value


def is_source(module: str, root: Path) -> bool:
    """Tells whether Python takes this top-level module from the root or from its `src`; imports nothing."""
    folders = {path.resolve() for path in (root, root / "src")}
    folders = {path for path in folders if not _is_installed(path)}
    # Only a name that is there is looked up everywhere: the import hooks of other packages may do anything.
    if importlib.machinery.PathFinder.find_spec(module, sorted(map(str, folders))) is None:
        return False
    found = _folders(module)
    return bool(found) and found <= folders


def _settings(root: Path) -> dict[str, Any]:
    """Returns the table `[tool.everstep]` of a project; empty where there is none."""
    path = root / "pyproject.toml"
    settings = _table(path) if path.is_file() else {}
    if not isinstance(settings, dict) or not set(settings) <= _KEYS:
        raise UsageError(f"{path}: [tool.everstep] has the keys {sorted(_KEYS)}, received {show(settings)}")
    return settings


def _table(path: Path) -> Any:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    tools = tree.get("tool", {})
    return tools.get("everstep", {}) if isinstance(tools, dict) else {}


def _is_package(entry: Any) -> bool:
    return isinstance(entry, str) and all(part.isidentifier() for part in entry.split("."))


def _is_installed(path: Path) -> bool:
    return bool(_INSTALLED & set(path.parts)) or path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())


def _folders(module: str) -> set[Path]:
    """Returns the folders that hold a top-level module, loaded or not; a namespace may be in several."""
    loaded = sys.modules.get(module)
    spec = importlib.util.find_spec(module) if loaded is None else getattr(loaded, "__spec__", None)
    if spec is None:
        return set()
    if spec.submodule_search_locations is not None:
        return {Path(path).resolve().parent for path in spec.submodule_search_locations}
    return {Path(spec.origin).resolve().parent} if spec.has_location and spec.origin else set()
