"""A project's own code: found below one folder, and kept apart from that of other projects in the same process.

Everybody calls their modules `models` and `dataset`. While a project is active its folder comes first on Python's
path, and modules of the same names that are not its own are put aside; afterwards they are back, and the project's
are put away until it is active again.
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

from everstep.components.blame import blamed
from everstep.errors import UsageError, nearest

_OPEN = ("everstep", "keras")
"""Packages whose classes a configuration may name beside the project's."""


class Project:
    """The code of one project.

        project = Project("/home/me/mnist", "src")
        with project.active():
            cls = project.find_class("models.ModelBuilder", ModelBuilderBase, "model_builder_class (from config.yaml)")

    One project is active at a time, in one thread.

    Args:
      root: The project's folder.
      source: The folder of its classes, relative to the root.
      copy: A copy of that folder, to be used in its place.

    Raises:
      UsageError: There is no such folder in the project.
    """

    def __init__(self, root: Path, source: str, copy: Path | None = None) -> None:
        self.root, self.source = Path(root).resolve(), (copy or Path(root) / source).resolve()
        if not self.source.is_dir():
            raise UsageError(f"src_code_path: received {source!r}, but there is no folder {str(self.source)!r}")
        if copy is None and not self.source.is_relative_to(self.root):
            raise UsageError(f"src_code_path: received {source!r}, which leads out of the project {str(self.root)!r}")
        self._modules: dict[str, types.ModuleType] = {}
        self._depth = 0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block, the project's modules are those that its code imports by their names."""
        self._depth += 1
        if self._depth > 1:
            try:
                yield
            finally:
                self._depth -= 1
            return
        names = self._names()
        aside = _taken(names)
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.source))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            self._depth -= 1
            with contextlib.suppress(ValueError):  # the project's code may have cleared the path
                sys.path.remove(str(self.source))
            self._modules = _taken(names)
            sys.modules.update(aside)

    def find_class(self, name: str, base: type | tuple[type, ...], key: str) -> type:
        """Returns the class of a dotted name; the project has to be active.

        Args:
          name: Module and class, `models.ModelBuilder`.
          base: What it is derived from.
          key: Where the name was said, for messages.

        Raises:
          UsageError: It is not in the project, cannot be imported, or is no such class.
        """
        found = self._find(name, key)
        bases = base if isinstance(base, tuple) else (base,)
        if not inspect.isclass(found) or not issubclass(found, bases):
            wanted = " or ".join(one.__name__ for one in bases)
            raise UsageError(f"{key}: {name!r} is {_spelled(found)}, expected a class derived from {wanted}")
        return found

    def _find(self, name: str, key: str) -> Any:
        top, *parts = name.split(".")
        if top not in self._names() and top not in _OPEN:
            raise UsageError(f"{key}: {name!r}: there is no module {top!r} in {str(self.source)!r}; {self._hint(top)}")
        held: Any = self._imported(top, name, key)
        for part in parts:
            held = self._member(held, part, name, key)
        return held

    def _member(self, held: Any, part: str, name: str, key: str) -> Any:
        if hasattr(held, part):
            return getattr(held, part)
        if inspect.ismodule(held) and hasattr(held, "__path__"):
            module = f"{held.__name__}.{part}"
            if importlib.machinery.PathFinder.find_spec(module, held.__path__) is not None:
                return self._imported(module, name, key)
        known = [other for other in dir(held) if not other.startswith("_")]
        raise UsageError(f"{key}: {name!r}: {_spelled(held)} has no {part!r}; {nearest(part, known)}")

    def _imported(self, module: str, name: str, key: str) -> types.ModuleType:
        try:
            with blamed(f"{key}: {name!r}: importing {module!r}", self.source):
                return importlib.import_module(module)
        except UsageError as error:
            missing = getattr(error.__cause__, "name", None)
            if isinstance(error.__cause__, ModuleNotFoundError) and str(missing).partition(".")[0] == "abstractions":
                raise UsageError(f"{error}; its names are in everstep.components: change the import") from error
            raise

    def _names(self) -> set[str]:
        """Returns the top-level modules and packages of the project; Python's own names are not to be had."""
        files = {path.stem for path in self.source.glob("*.py")}
        folders = {path.parent.name for path in self.source.glob("*/*.py")}
        names = {name for name in files | folders if name.isidentifier()}
        return names - set(sys.stdlib_module_names) - set(_OPEN)

    def _hint(self, top: str) -> str:
        if top in sys.stdlib_module_names:
            return f"{top!r} is a module of Python's own, rename the project's"
        return f"{nearest(top, self._names())} (only the project's classes, and those of everstep and keras, are used)"


def _taken(names: set[str]) -> dict[str, types.ModuleType]:
    """Takes the modules of these top-level names out of Python's table, and returns them."""
    own = [name for name in list(sys.modules) if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in own}


def _spelled(value: Any) -> str:
    if inspect.ismodule(value):
        return f"the module {value.__name__!r}"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"an object of the class {type(value).__name__}"
