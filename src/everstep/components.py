"""Five small components, one config file, one run: data loader, augmentor, preprocessor, model builder, evaluator.

    from everstep.components import Orchestrator
    Orchestrator("baseline", project_root=".", data_dir="datasets/mnist").run()

A project has its classes below `src_code_path` and a `runs/<name>/config.yaml` for every run; the orchestrator builds
the classes, trains, exports the best epoch and evaluates the export. The names below are loaded when they are first
used: reading a config file needs no Keras.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.frontends.components.base_classes import AugmentorBase as AugmentorBase
    from everstep.frontends.components.base_classes import BaseClass as BaseClass
    from everstep.frontends.components.base_classes import DataLoaderBase as DataLoaderBase
    from everstep.frontends.components.base_classes import EvaluatorBase as EvaluatorBase
    from everstep.frontends.components.base_classes import GenericModelBuilderBase as GenericModelBuilderBase
    from everstep.frontends.components.base_classes import ModelBuilderBase as ModelBuilderBase
    from everstep.frontends.components.base_classes import PreprocessorBase as PreprocessorBase
    from everstep.frontends.components.config import ConfigNotFound as ConfigNotFound
    from everstep.frontends.components.config import ConfigStruct as ConfigStruct
    from everstep.frontends.components.config import FoundMultipleConfigs as FoundMultipleConfigs
    from everstep.frontends.components.config import load_config_file as load_config_file
    from everstep.frontends.components.generic_trainer import GenericTrainer as GenericTrainer
    from everstep.frontends.components.keras_trainer import KerasTrainer as KerasTrainer
    from everstep.frontends.components.keras_trainer import TFKerasTrainer as TFKerasTrainer
    from everstep.frontends.components.orchestrator import Orchestrator as Orchestrator

_WHERE = {
    "AugmentorBase": "base_classes",
    "BaseClass": "base_classes",
    "ConfigNotFound": "config",
    "ConfigStruct": "config",
    "DataLoaderBase": "base_classes",
    "EvaluatorBase": "base_classes",
    "FoundMultipleConfigs": "config",
    "GenericModelBuilderBase": "base_classes",
    "GenericTrainer": "generic_trainer",
    "KerasTrainer": "keras_trainer",
    "ModelBuilderBase": "base_classes",
    "Orchestrator": "orchestrator",
    "PreprocessorBase": "base_classes",
    "TFKerasTrainer": "keras_trainer",
    "load_config_file": "config",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"everstep.frontends.components.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
