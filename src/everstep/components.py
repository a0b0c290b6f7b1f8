"""Five small components, one config file, one run: data loader, augmentor, preprocessor, model builder, evaluator.

    from everstep.components import Orchestrator
    Orchestrator("baseline", project_root=".", data_dir="datasets/mnist").run()

A project has its classes below `src_code_path` and a `runs/<name>/config.yaml` for every run; the orchestrator builds
the classes, trains, exports the best epoch and evaluates the export. The names below are loaded when they are first
used: reading a config file needs no Keras.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

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
    "AugmentorBase": "everstep.frontends.components.base_classes",
    "BaseClass": "everstep.frontends.components.base_classes",
    "ConfigNotFound": "everstep.frontends.components.config",
    "ConfigStruct": "everstep.frontends.components.config",
    "DataLoaderBase": "everstep.frontends.components.base_classes",
    "EvaluatorBase": "everstep.frontends.components.base_classes",
    "FoundMultipleConfigs": "everstep.frontends.components.config",
    "GenericModelBuilderBase": "everstep.frontends.components.base_classes",
    "GenericTrainer": "everstep.frontends.components.generic_trainer",
    "KerasTrainer": "everstep.frontends.components.keras_trainer",
    "ModelBuilderBase": "everstep.frontends.components.base_classes",
    "Orchestrator": "everstep.frontends.components.orchestrator",
    "PreprocessorBase": "everstep.frontends.components.base_classes",
    "TFKerasTrainer": "everstep.frontends.components.keras_trainer",
    "load_config_file": "everstep.frontends.components.config",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
