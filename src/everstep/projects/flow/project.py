"""A project of flows: a folder with `pyproject.toml` and `config/parameters.yaml`; its tasks are in `train.py`."""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tomllib
import traceback
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError, did_you_mean
from everstep.projects.flow.task import FlowTask

_PARAMETERS = Path("config", "parameters.yaml")

_MAKES_CLASSES = re.compile(r"import \*|\btype\([^()]*,|\bglobals\(|\bexec\(|\bsetattr\(|new_class|make_dataclass")
"""What may define classes that no file names."""


class FlowProject:
    """One project.

        project = FlowProject.find()               # from the current folder upwards
        project.load()                             # imports its train.py
        project.task("Mnist_B")

    Args:
      root: Its folder.

    Attributes:
      root: Its folder, absolute.
      name: The name in `pyproject.toml`.
    """

    def __init__(self, root: storage.PathLike) -> None:
        self.root = Path(root).expanduser().resolve()
        self.name = _name(self.root)

    @classmethod
    def find(cls, start: storage.PathLike | None = None) -> "FlowProject":
        """Returns the nearest project, from a folder upwards.

        Args:
          start: The folder; by default the current one.

        Raises:
          UsageError: There is no project.
        """
        here = (Path.cwd() if start is None else Path(start).expanduser()).resolve()
        for folder in (here, *here.parents):
            if (folder / "pyproject.toml").is_file() and (folder / _PARAMETERS).is_file():
                return cls(folder)
        reason = f"no project in {str(here)!r} or above: none of the folders has pyproject.toml and {_PARAMETERS}"
        raise UsageError(reason, remedy="go to a project's folder, or create one: everstep new PROJECT")

    def load(self) -> None:
        """Imports the project's `train.py`, under the project's own name; installed or not.

        Raises:
          UsageError: It does not exist, or cannot be imported; names file and line.
        """
        train = self.root / "train.py"
        if not train.is_file():
            raise UsageError(
                "does not exist", key="train.py", received=str(train), remedy="define or import the tasks there"
            )
        try:
            self._import()
        except (UsageError, KeyboardInterrupt):
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            raise UsageError(f"importing {train} fails{self._place(error)}: {type(error).__name__}: {text}") from error

    def _import(self) -> types.ModuleType:
        self.make_importable()
        return importlib.import_module("train" if self.package is None else f"{self.package}.train")

    def make_importable(self) -> None:
        """Makes the project's code importable from its folder, installed or not."""
        package = self.package
        if package is None:
            sys.path.insert(0, str(self.root))
            return
        held = sys.modules.get(package)
        if held is None or not self._holds(held.__file__ or ""):
            for name in [name for name in sys.modules if name.partition(".")[0] == package]:
                del sys.modules[name]  # of another project with the same name
            _make_package(package, self.root)

    @property
    def package(self) -> str | None:
        """The name of the package in the project's folder; None where the folder is no package."""
        name = self.name.replace("-", "_").replace(".", "_")
        return name if (self.root / "__init__.py").is_file() and name.isidentifier() else None

    def tasks(self) -> dict[str, type[FlowTask]]:
        """Returns the tasks there are, by name: those whose code is in the project, or typed into a notebook.

        Of several classes with one name, such as those of a notebook's cell that ran twice, the last one counts.
        """
        found = [cls for cls in _below(FlowTask) if self._holds(_file(cls)) or cls.__module__ == "__main__"]
        return {cls.__name__: cls for cls in found}

    def task(self, name: str) -> type[FlowTask]:
        """Returns the task of a name.

        Raises:
          UsageError: There is no such task, with a list of all; or it lacks a step.
        """
        known = self.tasks()
        if name not in known:
            raise self._unknown(name, [name for name, cls in known.items() if not inspect.isabstract(cls)])
        return require_steps(known[name])

    def refuse_unwritten(self, name: str) -> None:
        """Refuses a name that is nowhere in the project's files, without importing them, which may load Keras.

        Raises:
          UsageError: There is no such task.
        """
        try:
            texts = [path.read_text("utf-8") for path in self._sources()]
            trees = [ast.parse(text) for text in texts]
        except (OSError, ValueError, SyntaxError):  # importing them tells what is wrong
            return
        if any(re.search(rf"\b{re.escape(name)}\b", text) or _MAKES_CLASSES.search(text) for text in texts):
            return
        classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        found, before = {"FlowTask"}, 0
        while len(found) > before:
            before = len(found)
            found |= {
                node.name for node in classes if found & {ast.unparse(base).split(".")[-1] for base in node.bases}
            }
        if len(found) > 1:
            raise self._unknown(name, found - {"FlowTask"})

    def _sources(self) -> Iterator[Path]:
        for folder, names, files in os.walk(self.root):
            names[:] = [name for name in names if name not in ("runs", "data") and not name.startswith((".", "__"))]
            yield from (Path(folder, file) for file in files if file.endswith(".py"))

    def _unknown(self, name: str, tasks: Iterable[str]) -> UsageError:
        listed = ", ".join(sorted(tasks)) or "none"
        near = did_you_mean(name, tasks)
        remedy = f"{near} tasks: {listed}".strip()
        return UsageError(f"there is no such task in {self.root}", key="task", received=name, remedy=remedy)

    def _holds(self, file: str) -> bool:
        return bool(file) and Path(file).resolve().is_relative_to(self.root)

    def _place(self, error: Exception) -> str:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if self._holds(frame.filename)]
        return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def require_steps(cls: type[FlowTask]) -> type[FlowTask]:
    """Returns a task's class, if it has every step.

    Raises:
      UsageError: Names the missing steps.
    """
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if cls.run is FlowTask.run and cls.build_model is FlowTask.build_model:
        lacking.append("build_model")
    if lacking:
        steps = " and ".join(f"{name}()" for name in lacking)
        remedy = f"define it in the class, in {_file(cls) or 'its cell'}"
        raise UsageError(f"lacks {steps}", key="task", received=cls.__name__, remedy=remedy)
    return cls


def _below(cls: Any) -> Iterator[type[FlowTask]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)


def _file(cls: type) -> str:
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or ""


def _make_package(package: str, root: Path) -> None:
    """Makes the project's folder importable by its name, as its installation would."""
    spec = importlib.util.spec_from_file_location(package, root / "__init__.py", submodule_search_locations=[str(root)])
    if spec is None or spec.loader is None:
        raise UsageError(f"{root / '__init__.py'} cannot be imported")
    sys.modules[package] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[package]
        raise


def _name(root: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8")).get("project", {})
        if isinstance(project, dict) and isinstance(project.get("name"), str):
            return project["name"]
    return root.name
