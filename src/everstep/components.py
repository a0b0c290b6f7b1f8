"""Five small components, one config file, one run: data loader, augmentor, preprocessor, model builder, evaluator.

    from everstep.components import Orchestrator
    Orchestrator("baseline", project_root=".", data_dir="datasets/mnist").run()

A project has its classes below `src_code_path` and a `runs/<name>/config.yaml` for every run; the orchestrator builds
the classes, trains, exports the best epoch and evaluates the export. The names below are loaded when they are first
used: reading a config file needs no Keras.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.components import (
        AugmentorBase,
        BaseClass,
        ConfigNotFound,
        ConfigStruct,
        DataLoaderBase,
        EvaluatorBase,
        FoundMultipleConfigs,
        GenericModelBuilderBase,
        GenericTrainer,
        KerasTrainer,
        ModelBuilderBase,
        Orchestrator,
        PreprocessorBase,
        TFKerasTrainer,
        load_config_file,
    )


__getattr__, __dir__ = lazy_names(__name__, __file__)
