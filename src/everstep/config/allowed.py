"""Which code a name in a configuration may reach: `my_project.models.Net` yes, `os.system` no.

A configuration is data, often from an untrusted source. A dotted name in it is followed only inside the packages
that the user's project allows:

- the project's own source: a top-level module or package in the project's root or in its `src`;
- what `[tool.everstep] allow = ["my_lib", "other.sub"]` in the root's `pyproject.toml` lists;
- the parts of Keras and Everstep that only describe a model: both packages also read files, fetch from the network and
  write to disk, so only classes whose construction does none of that are open.

The name is checked before anything is imported, and the object again once it is imported: `my_project.os.system` is
still `os.system`.
"""

import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import sysconfig
import tomllib
import types
from pathlib import Path
from typing import Any

from everstep.errors import UsageError, nearest
from everstep.keras_internals import is_of_backend

_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What one project allows, in addition to the parts of Keras and Everstep that are always open.

    Attributes:
      root: The project's directory.
      packages: What its `pyproject.toml` lists: packages, or parts of them.
    """

    root: Path
    packages: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> "Allowed":
        """Returns what the project of the current directory allows.

        Raises:
          UsageError: Its `pyproject.toml` is malformed.
        """
        root = find_root()
        return cls(root, trusted_packages(root))

    def holds(self, module: str) -> bool:
        """Returns whether a module is the user's: listed, or source of the project. Anything in it may be used."""
        if any(_is_within(module, package) for package in self.packages):
            return True
        top = module.partition(".")[0]
        return top not in PACKAGES and is_source(top, self.root)

    def opens(self, module: str) -> bool:
        """Returns whether names may lead into a module, or through it to a part of it that is listed."""
        on_the_way = any(_is_within(package, module) for package in self.packages)
        return on_the_way or is_open(module) or self.holds(module)

    def require(self, name: str) -> None:
        """Refuses a dotted name that leads elsewhere; imports nothing.

        Raises:
          UsageError: With the reason and the remedy.
        """
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError("expected a dotted name such as my_project.models.Net", received=name)
        if any(part.startswith("_") for part in name.split(".")):
            raise UsageError(f"{name!r} is refused: a part that starts with an underscore is private")
        top = name.partition(".")[0]
        if top not in PACKAGES and not self.holds(name):
            raise UsageError(f"{name!r} is refused: {self._foreign(top)}", remedy=_trust(top))

    def check(self, value: Any, name: str) -> None:
        """Refuses an object that must not be used; what counts is where it is defined.

        Raises:
          UsageError: With the reason and the remedy.
        """
        while isinstance(value, functools.partial):
            value = value.func
        home = _home(value)
        if self.holds(home):
            return
        package = home.partition(".")[0]
        if package not in PACKAGES:
            reason = f"{name!r} is refused: it is {_spell(value)}, and {self._foreign(package)}"
            raise UsageError(reason, remedy=_trust(package))
        if refusal := _refusal(value, package):
            raise UsageError(f"{name!r} is refused: {refusal}", remedy=_trust(home))

    def _foreign(self, package: str) -> str:
        return f"{package!r} is neither source of this project ({self.root}) nor allowed by it"


def _trust(package: str) -> str:
    return f'if you trust it, add "{package}" to [tool.everstep] allow in pyproject.toml'


def resolve(name: str, allowed: Allowed | None = None) -> Any:
    """Returns the object that a dotted name such as `my_project.models.Net` means.

    Args:
      name: A module and something in it.
      allowed: Where names may lead; by default, what the project here allows.

    Raises:
      UsageError: The name leads elsewhere, what it means is defined elsewhere, or there is no such thing.
    """
    allowed = allowed or Allowed.here()
    allowed.require(name)
    module, _, _ = name.rpartition(".")
    if not module:
        raise UsageError(f"{name!r} is a package", remedy=f"name something in it: {name}.models.Net")
    _require_open(module, allowed, name)
    top, *parts = name.split(".")
    held: Any = _imported(top, name)
    for part in parts:
        _require_passage(held, name, allowed)
        held = _member(held, part, name)
    if _is_module(held):
        raise UsageError(f"{name!r} is refused: it is a module, not something in it")
    allowed.check(held, name)
    return held


def require_module(name: str, allowed: Allowed | None = None) -> None:
    """Refuses a module that a configuration must not import; imports nothing.

    Raises:
      UsageError: With the reason and the remedy.
    """
    allowed = allowed or Allowed.here()
    allowed.require(name)
    _require_open(name, allowed, name)


def import_allowed(name: str, allowed: Allowed | None = None) -> types.ModuleType:
    """Imports a module that a configuration names, and returns it.

    Raises:
      UsageError: The project does not allow it, or there is no such module.
    """
    require_module(name, allowed)
    return _imported(name, name)


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _require_open(module: str, allowed: Allowed, name: str) -> None:
    """Refuses a module of Keras that is not among the open ones."""
    if _is_within(module, "keras") and not allowed.opens(module):
        reason = f"{name!r} is refused: of Keras a configuration uses {', '.join(KERAS_MODULES)}"
        raise UsageError(reason, remedy=_trust(module))


def _require_passage(held: Any, name: str, allowed: Allowed) -> None:
    """Refuses a name that leads through something that is not the user's."""
    home = _home(held)
    if not (allowed.opens(home) if _is_module(held) else allowed.holds(home)):
        raise UsageError(f"{name!r} is refused: it leads through {_spell(held)}, which this project does not allow")


def _member(held: Any, part: str, name: str) -> Any:
    if hasattr(held, part):
        return getattr(held, part)
    if _is_module(held) and hasattr(held, "__path__"):
        module = f"{held.__name__}.{part}"
        if importlib.util.find_spec(module) is not None:
            return _imported(module, name)
    known = [other for other in dir(held) if not other.startswith("_")]
    raise UsageError(f"{name!r} does not exist: {_spell(held)} has no {part!r}", remedy=nearest(part, known))


def _imported(module: str, name: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # found, but it imports something that is not there
        raise UsageError(f"{name!r} does not exist: Python finds no module {error.name!r}") from None


def _is_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType)


def _home(value: Any) -> str:
    """Returns the module that defines an object: of a method its function's, of an instance its class's."""
    if isinstance(value, functools.partial):
        return _home(value.func)
    if isinstance(value, types.MethodType):
        return _home(value.__func__)
    if isinstance(value, functools._lru_cache_wrapper):
        return _home(value.__wrapped__)
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, _NAMED) and isinstance(value.__module__, str):
        return value.__module__
    return type(value).__module__


def _spell(value: Any) -> str:
    if isinstance(value, functools.partial):
        return f"a partial of {_spell(value.func)}"
    if _is_module(value):
        return f"the module {value.__name__!r}"
    if isinstance(value, (*_NAMED, types.MethodType, functools._lru_cache_wrapper)):
        return f"{_home(value)}.{value.__qualname__}"
    return f"an object of the class {_home(value)}.{type(value).__qualname__}"


# -- what of Keras and of Everstep itself a configuration may build -------------------------------------------------

PACKAGES = ("keras", "everstep")
"""Packages that are open in part."""

KERAS_MODULES = (
    "keras",
    "keras.activations",
    "keras.constraints",
    "keras.initializers",
    "keras.layers",
    "keras.losses",
    "keras.metrics",
    "keras.models",
    "keras.optimizers",
    "keras.optimizers.schedules",
    "keras.regularizers",
)
"""The modules of Keras that names may lead into; of Everstep it is all of them."""

# Layers that run code, or read what a path or a URL names.
_REFUSED = {
    "FlaxLayer",
    "IndexLookup",
    "JaxLayer",
    "Lambda",
    "TextVectorization",
    "TFSMLayer",
    "TorchModuleWrapper",
}
_BASES = {
    "constraints": "Constraint",
    "initializers": "Initializer",
    "layers": "Layer",
    "losses": "Loss",
    "metrics": "Metric",
    "optimizers": "Optimizer",
    "regularizers": "Regularizer",
}
_OWN_BASES = {"config.base.Config", "task.task.Task"}
_NO_ACTIVATIONS = {"deserialize", "get", "serialize"}


def is_open(module: str) -> bool:
    """Returns whether names may lead into a module of these packages."""
    return module in KERAS_MODULES or module.partition(".")[0] == "everstep"


def _refusal(value: Any, package: str) -> str | None:
    """Returns why an object of `package` must not be built by a configuration, or None if it may."""
    if package == "keras" and _is_activation(value):
        return None
    if not isinstance(value, type):
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        return f"of {package!r} a configuration builds classes, and this is {name} ({type(value).__name__})"
    bases = {f"{base.__module__}.{base.__qualname__}" for base in value.__mro__}
    if package == "everstep" and bases & {f"everstep.{base}" for base in _OWN_BASES}:
        return None
    # The backend's own base of a layer is left out: it may share a name with a refused one.
    names = {base.__name__ for base in value.__mro__ if not is_of_backend(base)}
    if package == "keras" and names & _REFUSED:
        return f"{value.__name__} runs code or reads files when it is created; create it in a module of your own"
    if not issubclass(value, _bases()):
        kinds = "Config, Task, " if package == "everstep" else ""
        return f"{value.__name__} is none of {kinds}{', '.join(_BASES.values())}, LearningRateSchedule"
    return None


def _bases() -> tuple[type, ...]:
    keras = sys.modules.get("keras")
    if keras is None:
        return ()
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return (schedule, *(getattr(getattr(keras, module), name) for module, name in _BASES.items()))


def _is_activation(value: Any) -> bool:
    if not isinstance(value, types.FunctionType) or value.__name__ in _NO_ACTIVATIONS:
        return False
    return getattr(sys.modules["keras"].activations, value.__name__, None) is value


# -- the user's project: its root, its source, the packages it trusts ----------------------------------------------

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
        key, reason = "[tool.everstep] allow", 'must be a list such as ["my_lib"]'
        raise UsageError(reason, key=key, received=entries, origin=str(path))
    return tuple(entries)


def allows_pickle(root: Path) -> bool:
    """Returns whether the root's `pyproject.toml` sets `[tool.everstep] allow-pickle = true`.

    Raises:
      UsageError: The file cannot be read, or the value is neither true nor false.
    """
    value = _settings(root).get("allow-pickle", False)
    if not isinstance(value, bool):
        key, origin = "[tool.everstep] allow-pickle", str(root / "pyproject.toml")
        raise UsageError("must be true or false", key=key, received=value, origin=origin)
    return value


def is_source(module: str, root: Path) -> bool:
    """Returns whether Python takes this top-level module from the root or from its `src`; imports nothing."""
    folders = {path.resolve() for path in (root, root / "src")}
    folders = {path for path in folders if not _is_installed(path)}
    # Only a name found there is looked up everywhere: the import hooks of other packages may run any code.
    if importlib.machinery.PathFinder.find_spec(module, sorted(map(str, folders))) is None:
        return False
    found = _folders(module)
    return bool(found) and found <= folders


def _settings(root: Path) -> dict[str, Any]:
    """Returns the table `[tool.everstep]` of a project; empty where there is none."""
    path = root / "pyproject.toml"
    settings = _table(path) if path.is_file() else {}
    if not isinstance(settings, dict) or not set(settings) <= _KEYS:
        raise UsageError(f"has the keys {sorted(_KEYS)}", key="[tool.everstep]", received=settings, origin=str(path))
    return settings


def _table(path: Path) -> Any:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"cannot be read: {error}", key=str(path)) from None
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
