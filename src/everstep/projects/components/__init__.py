"""Five small components, one config file, one run: data loader, augmentor, preprocessor, model builder, evaluator.

The public names are in `everstep.components`.

base_classes.py      the classes that a project derives its own from
config.py            the config file of a run
run_folder.py        a run before its code is imported
project.py           a project's code
orchestrator.py      `Orchestrator`: a run from its config file to its reports
building.py          the objects that a run is built of
data_splits.py       loader, augmentor and preprocessor, joined to batches
validation_order.py  whether validation data keeps its order
keras_trainer.py     trains the model on the loop, and keeps the best epoch
generic_trainer.py   estimators that train themselves
export.py            `exported/`: writes the epoch that the trainer has kept
exported_model.py    the forms of an export
evaluation.py        every sample of validation and test data
model_metrics.py     the model's own metrics
losses.py            what a loss of Keras's own expects
error_context.py     what a project's code raises, as one line
first_batch.py       whether all parts fit together, on one batch
checks/              `everstep check`
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.components.base_classes import (
        AugmentorBase,
        BaseClass,
        DataLoaderBase,
        EvaluatorBase,
        GenericModelBuilderBase,
        ModelBuilderBase,
        PreprocessorBase,
    )
    from everstep.projects.components.config import (
        ConfigNotFound,
        ConfigStruct,
        FoundMultipleConfigs,
        ProjectConfig,
        find_config,
        load_config_file,
        load_run_config,
    )
    from everstep.projects.components.generic_trainer import GenericTrainer
    from everstep.projects.components.keras_trainer import (
        KerasTrainer,
        TFKerasTrainer,
    )
    from everstep.projects.components.orchestrator import Orchestrator
    from everstep.projects.components.run_folder import (
        RunFolder,
        open_run,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
