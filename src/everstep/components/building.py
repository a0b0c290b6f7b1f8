"""From a configuration to the five components."""

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.components.augmentor import AugmentorBase
from everstep.components.blame import blamed
from everstep.components.config_struct import ConfigStruct
from everstep.components.data_loader import DataLoaderBase
from everstep.components.evaluator import EvaluatorBase
from everstep.components.model_builder import GenericModelBuilderBase, ModelBuilderBase
from everstep.components.preprocessor import PreprocessorBase
from everstep.components.project import Project
from everstep.components.validation_order import ValidationOrder
from everstep.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Components:
    """What a run is made of.

    Attributes:
      config: The configuration that they were built with.
      project: Whose they are.
      augmentor: None where nothing is augmented.
      validation_order: Whether all passes over the validation data were in one order.
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
        """The block in which a component's method is called: where it fails, one line says so, with key and file."""
        name = self.config[f"{component}_class"]
        place = self.config.place(f"{component}_class")
        with (
            self.naming(component),
            blamed(f"{component}_class: {name}.{method}() (from {place})", self.project.source),
        ):
            yield

    @contextlib.contextmanager
    def naming(self, component: str) -> Iterator[None]:
        """Inside the block, an error that names no key or no config file gets those of the component.

        Raises:
          UsageError: What was raised inside, named.
        """
        try:
            yield
        except UsageError as error:
            text = self._named(f"{component}_class", str(error))
            if text == str(error):
                raise
            raise UsageError(text) from error

    def _named(self, key: str, text: str) -> str:
        if self.config.origin not in text:
            return f"{key}: {self.config[key]}: {text} (from {self.config.place(key)})"
        return text if key in text or _HAS_KEY.match(text) else f"{key}: {text}"


_HAS_KEY = re.compile(r"[\w.]+: ")

BASES: Mapping[str, tuple[type, ...]] = {
    "data_loader": (DataLoaderBase,),
    "augmentor": (AugmentorBase,),
    "preprocessor": (PreprocessorBase,),
    "model_builder": (ModelBuilderBase, GenericModelBuilderBase),
    "evaluator": (EvaluatorBase,),
}
"""What the class of each component is derived from."""


def build_components(config: ConfigStruct, project: Project) -> Components:
    """Imports and builds the components, inside an active project.

    Seed everything before: what they draw from random generators belongs to the run.

    Raises:
      UsageError: One cannot be built; one line with the key, the file and the reason.
    """
    augments = config.do_train_augmentation or config.do_validation_augmentation
    built = {name: build_component(name, config, project) for name in BASES if name != "augmentor" or augments}
    return Components(config=config, project=project, **{"augmentor": None, **built})


def build_component(component: str, config: ConfigStruct, project: Project, *, empty: bool = False) -> Any:
    """Imports and builds one component, inside an active project.

    Args:
      component: One of `BASES`.
      config: The configuration.
      project: Whose class it is.
      empty: Whether to build it from None in place of the configuration, as somebody who explores does.

    Raises:
      UsageError: It cannot be built; one line with the key, the file and the reason.
    """
    key, name = f"{component}_class", config[f"{component}_class"]
    place = config.place(key)
    cls = project.find_class(name, BASES[component], f"{key} (from {place})")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise UsageError(f"{key}: {name} does not define {', '.join(missing)} (from {place})")
    homeless = component == "data_loader" and config.data_dir is None
    hint = "; no data_dir is given: say --data-dir, or set it in the config file" if homeless else ""
    with blamed(f"{key}: {name}({'None' if empty else 'config'}) (from {place})", project.source, hint):
        return _made(cls, None if empty else config, config.data_dir)


def _made(cls: Callable[..., Any], config: ConfigStruct | None, folder: Any) -> Any:
    """Calls the class with the configuration, and with the data's folder where it takes one."""
    if inspect.isclass(cls) and issubclass(cls, DataLoaderBase) and _takes(cls, config, folder):
        return cls(config, folder)
    return cls(config)


def _takes(cls: Callable[..., Any], *arguments: Any) -> bool:
    try:
        inspect.signature(cls).bind(*arguments)
    except TypeError:
        return False
    return True
