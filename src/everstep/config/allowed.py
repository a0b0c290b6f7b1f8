"""Which code a name in a configuration may reach: `my_project.models.Net` yes, `os.system` no.

A configuration is data, often somebody else's. A dotted name in it is followed only inside the packages that
the user's project allows:

- the project's own source: a top-level module or package that lies in the project's root or in its `src`;
- what `[tool.everstep] allow = ["my_lib", "other.sub"]` in the root's `pyproject.toml` lists;
- the parts of Keras and Everstep that only describe a model (see `everstep.config.buildable`).

The name is judged before anything is imported, and the object again once it is there: `my_project.os.system` is
`os.system`, whatever it is called.
"""

import dataclasses
import functools
import importlib
import importlib.util
import types
from pathlib import Path
from typing import Any

from everstep.config import buildable, project
from everstep.config.problem import show
from everstep.errors import UsageError, nearest

_NAMED = (type, types.FunctionType, types.BuiltinFunctionType)


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What one project allows, beside the parts of Keras and Everstep that are open to everybody.

    Attributes:
      root: The project's directory.
      packages: What its `pyproject.toml` lists: packages, or parts of them.
    """

    root: Path
    packages: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> "Allowed":
        """Returns what the project allows that the current directory belongs to.

        Raises:
          UsageError: Its `pyproject.toml` is malformed.
        """
        root = project.find_root()
        return cls(root, project.trusted_packages(root))

    def holds(self, module: str) -> bool:
        """Tells whether a module is the user's: listed, or source of the project. Anything in it may be used."""
        if any(_is_within(module, package) for package in self.packages):
            return True
        top = module.partition(".")[0]
        return top not in buildable.PACKAGES and project.is_source(top, self.root)

    def opens(self, module: str) -> bool:
        """Tells whether names may lead into a module, or through it to a part of it that is listed."""
        on_the_way = any(_is_within(package, module) for package in self.packages)
        return on_the_way or buildable.is_open(module) or self.holds(module)

    def require(self, name: str) -> None:
        """Refuses a dotted name that leads elsewhere; imports nothing.

        Raises:
          UsageError: With the reason and the remedy.
        """
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{show(name)} is no dotted name, such as my_project.models.Net")
        if any(part.startswith("_") for part in name.split(".")):
            raise UsageError(f"{name!r} is refused: a part that begins with an underscore is private")
        top = name.partition(".")[0]
        if top not in buildable.PACKAGES and not self.holds(name):
            raise UsageError(f"{name!r} is refused: {self._elsewhere(top)}")

    def refusal(self, value: Any) -> str | None:
        """Returns why an object must not be used, or None if it may; what counts is where it is defined."""
        while isinstance(value, functools.partial):
            value = value.func
        home = _home(value)
        if self.holds(home):
            return None
        package = home.partition(".")[0]
        if package not in buildable.PACKAGES:
            return f"it is {_spell(value)}, and {self._elsewhere(package)}"
        reason = buildable.refusal(value, package)
        return reason and f'{reason}; if you trust it, add "{home}" to [tool.everstep] allow in pyproject.toml'

    def _elsewhere(self, package: str) -> str:
        return (
            f"{package!r} is neither source of this project ({self.root}) nor allowed by it; "
            f'if you trust it, add "{package}" to [tool.everstep] allow in pyproject.toml'
        )


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
        raise UsageError(f"{name!r} is a package; name something in it: {name}.models.Net")
    _require_open(module, allowed, name)
    top, *parts = name.split(".")
    held: Any = _imported(top, name)
    for part in parts:
        _require_passage(held, name, allowed)
        held = _member(held, part, name)
    reason = "it is a module, not something in it" if _is_module(held) else allowed.refusal(held)
    if reason:
        raise UsageError(f"{name!r} is refused: {reason}")
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
    """Imports a module that a configuration asks for, and returns it.

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
        text = f"of Keras a configuration uses {', '.join(buildable.KERAS_MODULES)}"
        raise UsageError(f'{name!r} is refused: {text}; or add "{module}" to [tool.everstep] allow in pyproject.toml')


def _require_passage(held: Any, name: str, allowed: Allowed) -> None:
    """Refuses a name that goes on through something that is not the user's."""
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
    raise UsageError(f"{name!r} does not exist: {_spell(held)} has no {part!r}; {nearest(part, known)}")


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
