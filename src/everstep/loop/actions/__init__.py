"""Actions: called with the logs after each loop or evaluation.

The public names are in `everstep.actions`.

conditional.py         actions that run under a condition
early_stopping.py      `EarlyStopping`
best_checkpoint.py     the best weights of a run
export_saved_model.py  SavedModels while the model trains
weights.py             weights that other runs can start from
metrics.py             metrics by name, and their comparison
registry.py            actions by name
from_config.py         those that a configuration lists
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
