"""Actions: called with the logs after each loop or evaluation.

The public names are in `everstep.actions`.

conditional.py         actions that run under a condition; a new best metric, kept in a JSON file
early_stopping.py      `EarlyStopping`: counts evaluations in a row without improvement (`patience`, `min_delta`);
                       defaults of the configuration: `loop/config.py`; better or not: `metrics.py`
best_checkpoint.py     the best weights of a run in a folder beside its checkpoints (`best_checkpoint_export_subdir`);
                       which checkpoints are kept is in `checkpoint/retention.py`
export_saved_model.py  SavedModels while the model trains: numbers, how many are kept
weights.py             weights that other runs can start from: averages after each evaluation, copies of stages; NaN
                       is refused
metrics.py             metrics by name, `a|b`; compares two values (which direction a name implies:
                       `tracking/metric_names.py`); "is not a metric of the evaluation"
registry.py            actions by name: `register_action`, "there is no such action"
from_config.py         `train_actions`, `eval_actions`: those that a configuration lists, their order; a list that
                       changed on a resume
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.loop.actions.best_checkpoint import (
        STEP,
        BestCheckpointExporter,
        maybe_create_best_ckpt_exporter,
    )
    from everstep.loop.actions.conditional import (
        ConditionalAction,
        JSONPersistedValue,
        NewBestMetric,
    )
    from everstep.loop.actions.early_stopping import EarlyStopping
    from everstep.loop.actions.export_saved_model import (
        ExportFileManager,
        ExportSavedModel,
    )
    from everstep.loop.actions.from_config import (
        ConfiguredActions,
        get_eval_actions,
        get_train_actions,
    )
    from everstep.loop.actions.registry import register_action
    from everstep.loop.actions.weights import EMACheckpointing

__getattr__, __dir__ = lazy_names(__name__, __file__)
