"""`Components`: the objects that a run is built of, and error messages that name theirs."""

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.errors import Problem, TrainingError, UsageError
from everstep.projects.components.base_classes import (
    AugmentorBase,
    DataLoaderBase,
    EvaluatorBase,
    GenericModelBuilderBase,
    ModelBuilderBase,
    PreprocessorBase,
)
from everstep.projects.components.config import ConfigStruct, augments, origin_of
from everstep.projects.components.error_context import error_context, method_at, own_places
from everstep.projects.components.project import Project
from everstep.projects.components.validation_order import ValidationOrder

BASES: Mapping[str, tuple[type, ...]] = {
    "data_loader": (DataLoaderBase,),
    "augmentor": (AugmentorBase,),
    "preprocessor": (PreprocessorBase,),
    "model_builder": (ModelBuilderBase, GenericModelBuilderBase),
    "evaluator": (EvaluatorBase,),
}
"""What the class of each component is derived from."""


@dataclasses.dataclass(frozen=True)
class Components:
    """The components of a run.

    Attributes:
      config: The configuration that they were built with.
      project: The project that they belong to.
      augmentor: None where nothing is augmented.
      validation_order: Compares the passes over the validation data.
    """

    config: ConfigStruct
    project: Project
    data_loader: DataLoaderBase
    augmentor: AugmentorBase | None
    preprocessor: PreprocessorBase
    model_builder: ModelBuilderBase | GenericModelBuilderBase
    evaluator: EvaluatorBase
    validation_order: ValidationOrder = dataclasses.field(default_factory=ValidationOrder)

    @contextlib.contextmanager
    def calling(self, component: str, method: str) -> Iterator[None]:
        """The block in which a method of a component is called: its errors name method, key and file."""
        key = f"{component}_class"
        what, origin = f"{self.config[key]}.{method}()", origin_of(self.config, key)
        with self.naming(component), error_context(what, self.project.source, key=key, origin=origin):
            yield

    @contextlib.contextmanager
    def reading(self, split: str) -> Iterator[None]:
        """The block in which batches of a split are read: its errors name the component that is at fault.

        An exception is that of the component whose method failed. What is wrong with a batch is the preprocessor's,
        unless the error names another component already.
        """
        try:
            with self.naming("preprocessor"):
                yield
        except (UsageError, TrainingError):
            raise
        except Exception as error:
            component, method = self._failed_method(error) or ("data_loader", f"create_{split}_generator")
            with self.calling(component, method):
                raise

    def _failed_method(self, error: Exception) -> tuple[str, str] | None:
        """Returns the component, and its method, that an exception comes from; None if it comes from none."""
        places = [(Path(file).resolve(), line) for file, line in own_places(error, self.project.source)]
        for file, line in reversed(places):
            if found := method_at(str(file), line):
                for component in ("data_loader", "augmentor", "preprocessor"):
                    if (file, found[0]) in _class_places(getattr(self, component)):
                        return component, found[1]
        return None

    @contextlib.contextmanager
    def naming(self, component: str) -> Iterator[None]:
        """Inside the block a `UsageError` that names no origin gets the component's key, class and file.

        Raises:
          UsageError: The error, named.
        """
        try:
            yield
        except UsageError as error:
            named = tuple(self.named(component, problem) for problem in error.problems)
            if named == error.problems:
                raise
            raise UsageError(named) from error

    def named(self, component: str, problem: Problem) -> Problem:
        """Returns a problem with the component's key, class and file, unless it has an origin of its own."""
        key = f"{component}_class"
        if problem.origin:
            return problem if problem.key else dataclasses.replace(problem, key=key)
        reason = f"{self.config[key]}: {dataclasses.replace(problem, remedy='')}"
        return Problem(key, reason, origin_of(self.config, key), remedy=problem.remedy, mentions=problem.mentions)


def build_components(config: ConfigStruct, project: Project) -> Components:
    """Imports and builds the components, inside an active project.

    Seed everything before: random numbers that the constructors draw belong to the run.

    Raises:
      UsageError: One cannot be built; names its key, its file and the reason.
    """
    names = [name for name in BASES if name != "augmentor" or augments(config)]
    built = {name: build_component(name, config, project) for name in names}
    return Components(config=config, project=project, **{"augmentor": None, **built})


def build_component(component: str, config: ConfigStruct, project: Project, *, empty: bool = False) -> Any:
    """Imports and builds one component, inside an active project.

    Args:
      component: One of `BASES`.
      config: The configuration.
      project: The project whose class it is.
      empty: Whether to pass None in place of the configuration, as one does when exploring.

    Raises:
      UsageError: It cannot be built; names its key, its file and the reason.
    """
    key = f"{component}_class"
    name, origin = config[key], origin_of(config, key)
    cls = project.find_class(name, BASES[component], key, origin)
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UsageError(f"{name} does not define {', '.join(missing)}", key=key, origin=origin)
    arguments: list[Any] = [None if empty else config]
    remedy = ""
    if component == "data_loader":
        if config.data_dir is None:
            remedy = "no data_dir is given: pass --data-dir, or set it in the config file"
        if _accepts(cls, None, None):
            arguments.append(config.data_dir)
    what = f"{name}({'None' if empty else 'config'})"
    with error_context(what, project.source, key=key, origin=origin, remedy=remedy):
        return cls(*arguments)


def _class_places(component: Any) -> set[tuple[Path, str]]:
    """Returns file and name of a component's class, and of each class that it is derived from."""
    classes = component.__class__.__mro__
    methods = [(cls.__name__, method) for cls in classes for method in vars(cls).values() if inspect.isfunction(method)]
    return {(Path(method.__code__.co_filename).resolve(), name) for name, method in methods}


def _accepts(cls: type, *arguments: Any) -> bool:
    try:
        inspect.signature(cls).bind(*arguments)
    except TypeError:
        return False
    return True
