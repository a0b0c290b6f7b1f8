"""Five small components, one config file, one run: data loader, augmentor, preprocessor, model builder, evaluator.

The public names are in `everstep.components`.

base_classes.py      the classes that a project derives its own from: their methods, what each may return, what is
                     augmented by default
config.py            the config file of a run: its keys, defaults and types, misspelt and missing ones; a component's
                     own settings are not typed
run_folder.py        a run before its code is imported: `runs/<name>`, the links in it, its data folder
project.py           a project's code: where classes are looked for (`src_code_path`), kept apart from other projects
orchestrator.py      `Orchestrator`: trains, exports, evaluates: what is done, and what is left out since it is done
                     already; names on MLflow
building.py          the components, each built with the whole config; methods that are missing; errors that name
                     class, key and file
data_splits.py       batches of a split: how many an epoch has, `batchify`, the last short batch, weights, ids;
                     samples that were lost, or never end
validation_order.py  refuses validation data that comes in another order in each pass, since ids would not fit
keras_trainer.py     trains the model on the loop; keeps the best epoch by `export.metric`; callbacks, what may change
                     on a resume
generic_trainer.py   estimators that train themselves (scikit-learn): saved by skops, or joblib where it is allowed
export.py            `exported/`: writes the epoch that the trainer has kept, when again, whether it is damaged
exported_model.py    the forms of an export: SavedModel, or PyTorch program
evaluation.py        every sample of validation and test data: which files, refuses an export that was trained
                     otherwise, EVAL_REPORTS_DIR
model_metrics.py     the model's own metrics over all batches, as `model.evaluate`; R2 of estimators
losses.py            what a loss of Keras's expects: labels as numbers or one-hot, logits, weights of masks
error_context.py     what a project's code raises, as one line
first_batch.py       whether data, model, loss and evaluation fit together, on one batch; labels out of range, class
                     weights
checks/              `everstep check`: what is checked
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
