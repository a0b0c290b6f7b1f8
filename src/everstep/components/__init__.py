"""Five small components, one config file, one run: data loader, augmentor, preprocessor, model builder, evaluator.

    from everstep.components import Orchestrator
    Orchestrator("baseline", project_root=".", data_dir="datasets/mnist").run()

A project has its classes below `src_code_path` and a `runs/<name>/config.yaml` for every run; the orchestrator builds
the classes, trains, exports the best epoch and evaluates what it has exported. The names below are loaded when first
used: a config file is read without Keras.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.components.augmentor import AugmentorBase as AugmentorBase
    from everstep.components.base import BaseClass as BaseClass
    from everstep.components.config_file import ConfigNotFound as ConfigNotFound
    from everstep.components.config_file import FoundMultipleConfigs as FoundMultipleConfigs
    from everstep.components.config_file import load_config_file as load_config_file
    from everstep.components.config_struct import ConfigStruct as ConfigStruct
    from everstep.components.data_loader import DataLoaderBase as DataLoaderBase
    from everstep.components.evaluator import EvaluatorBase as EvaluatorBase
    from everstep.components.generic_trainer import GenericTrainer as GenericTrainer
    from everstep.components.keras_trainer import KerasTrainer as KerasTrainer
    from everstep.components.keras_trainer import TFKerasTrainer as TFKerasTrainer
    from everstep.components.model_builder import GenericModelBuilderBase as GenericModelBuilderBase
    from everstep.components.model_builder import ModelBuilderBase as ModelBuilderBase
    from everstep.components.orchestrator import Orchestrator as Orchestrator
    from everstep.components.preprocessor import PreprocessorBase as PreprocessorBase

_WHERE = {
    "AugmentorBase": "augmentor",
    "BaseClass": "base",
    "ConfigNotFound": "config_file",
    "ConfigStruct": "config_struct",
    "DataLoaderBase": "data_loader",
    "EvaluatorBase": "evaluator",
    "FoundMultipleConfigs": "config_file",
    "GenericModelBuilderBase": "model_builder",
    "GenericTrainer": "generic_trainer",
    "KerasTrainer": "keras_trainer",
    "ModelBuilderBase": "model_builder",
    "Orchestrator": "orchestrator",
    "PreprocessorBase": "preprocessor",
    "TFKerasTrainer": "keras_trainer",
    "load_config_file": "config_file",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
