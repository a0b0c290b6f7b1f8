"""A project's code: imported from one folder, and kept apart from that of other projects in the same process.

Everybody calls their modules `models` and `dataset`. While a project is active its folder comes first on Python's
path, and other modules of the same names are set aside; afterwards they are restored, and the project's own are kept
until it is active again.
"""

import contextlib
import importlib
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.errors import UsageError, nearest
from everstep.projects.components.error_context import error_context

_LIBRARIES = ("everstep", "keras")
"""Packages whose classes a configuration may name beside the project's."""


class Project:
    """The code of one project.

        project = Project("/home/me/mnist", "src")
        with project.active():
            cls = project.find_class("models.ModelBuilder", (ModelBuilderBase,), "model_builder_class", "config.yaml:3")

    One project is active at a time, in one thread.

    Args:
      root: The project's folder.
      source: The folder of its classes, relative to the root.
      origin: Where `source` is set, for messages.
      copy: A copy of that folder, to be used in its place.

    Raises:
      UsageError: The project contains no such folder.
    """

    def __init__(self, root: Path, source: str, origin: str = "", copy: Path | None = None) -> None:
        self.root, self.source = Path(root).resolve(), (copy or Path(root) / source).resolve()
        self._modules: dict[str, types.ModuleType] = {}
        self._depth = 0
        reason = ""
        if not self.source.is_dir():
            reason = f"there is no folder {str(self.source)!r}"
        elif copy is None and not self.source.is_relative_to(self.root):
            reason = f"must be inside the project {str(self.root)!r}"
        if reason:
            raise UsageError(reason, key="src_code_path", received=source, origin=origin)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block the project's modules are found by their names."""
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        names = self._names()
        others = _pop_modules(names)
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.source))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            self._depth -= 1
            with contextlib.suppress(ValueError):  # the project's code may have cleared the path
                sys.path.remove(str(self.source))
            self._modules = _pop_modules(names)
            sys.modules.update(others)

    def find_class(self, name: str, bases: tuple[type, ...], key: str, origin: str = "") -> type:
        """Returns the class of a dotted name; the project has to be active.

        Args:
          name: Module and class, `models.ModelBuilder`.
          bases: The classes of which it has to be derived from one.
          key: The key whose value the name is, for messages.
          origin: Where that key is set.

        Raises:
          UsageError: It is not in the project, cannot be imported, or is no such class.
        """
        self.require_module(name, key, origin)
        top, *parts = name.split(".")
        found: Any = self._import(top, name, key, origin)
        for part in parts:
            if hasattr(found, part):
                found = getattr(found, part)
                continue
            if inspect.ismodule(found) and hasattr(found, "__path__"):
                module = f"{found.__name__}.{part}"
                if importlib.machinery.PathFinder.find_spec(module, found.__path__) is not None:
                    found = self._import(module, name, key, origin)
                    continue
            hint = nearest(part, [other for other in dir(found) if not other.startswith("_")])
            raise UsageError(f"{_describe(found)} has no {part!r}", key=key, received=name, remedy=hint, origin=origin)
        if not inspect.isclass(found) or not issubclass(found, bases):
            expected = " or ".join(base.__name__ for base in bases)
            raise UsageError(
                f"must be a class derived from {expected}, but is {_describe(found)}",
                key=key,
                received=name,
                origin=origin,
            )
        return found

    def require_module(self, name: str, key: str, origin: str = "") -> None:
        """Checks, without importing it, that a class's module exists.

        Args:
          name: Module and class, `models.ModelBuilder`.
          key: The key whose value the name is, for messages.
          origin: Where that key is set.

        Raises:
          UsageError: The project has no such module; names similar ones.
        """
        top = name.partition(".")[0]
        if top not in self._names() and top not in _LIBRARIES:
            hint = f"{nearest(top, self._names())} (only classes of the project, of everstep and of keras are used)"
            if top in sys.stdlib_module_names:
                hint = f"{top!r} is a module of Python's own, rename the project's"
            raise UsageError(
                f"{str(self.source)!r} contains no module {top!r}", key=key, received=name, remedy=hint, origin=origin
            )

    def _import(self, module: str, name: str, key: str, origin: str) -> types.ModuleType:
        try:
            with error_context(f"{name}: importing {module!r}", self.source, key=key, origin=origin):
                return importlib.import_module(module)
        except UsageError as error:
            missing = getattr(error.__cause__, "name", None)
            if isinstance(error.__cause__, ModuleNotFoundError) and str(missing).partition(".")[0] == "abstractions":
                remedy = "change the import: its names are in everstep.components"
                raise UsageError(error.reason, key=key, remedy=remedy, origin=origin) from error
            raise

    def _names(self) -> set[str]:
        """Returns the top-level modules and packages of the project, without those that Python has itself."""
        files = {path.stem for path in self.source.glob("*.py")}
        folders = {path.parent.name for path in self.source.glob("*/*.py")}
        names = {name for name in files | folders if name.isidentifier()}
        return names - set(sys.stdlib_module_names) - set(_LIBRARIES)


def _pop_modules(names: set[str]) -> dict[str, types.ModuleType]:
    """Removes the modules of these top-level names from Python's table, and returns them."""
    own = [name for name in list(sys.modules) if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in own}


def _describe(value: Any) -> str:
    if inspect.ismodule(value):
        return f"the module {value.__name__!r}"
    return f"the class {value.__name__}" if inspect.isclass(value) else f"an object of the class {type(value).__name__}"
