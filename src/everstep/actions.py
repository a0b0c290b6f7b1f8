"""Actions: what is called with the logs after a loop or an evaluation, and what a run brings along of them.

    from everstep.actions import ConditionalAction, NewBestMetric, register_action

The names below are loaded when first used: a module that only registers an action loads neither Keras nor a backend.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.loop.actions.best_checkpoint import BestCheckpointExporter as BestCheckpointExporter
    from everstep.loop.actions.best_checkpoint import maybe_create_best_ckpt_exporter as maybe_create_best_ckpt_exporter
    from everstep.loop.actions.conditional import ConditionalAction as ConditionalAction
    from everstep.loop.actions.conditional import JSONPersistedValue as JSONPersistedValue
    from everstep.loop.actions.conditional import NewBestMetric as NewBestMetric
    from everstep.loop.actions.early_stopping import EarlyStopping as EarlyStopping
    from everstep.loop.actions.export_saved_model import ExportFileManager as ExportFileManager
    from everstep.loop.actions.export_saved_model import ExportSavedModel as ExportSavedModel
    from everstep.loop.actions.from_config import get_eval_actions as get_eval_actions
    from everstep.loop.actions.from_config import get_train_actions as get_train_actions
    from everstep.loop.actions.registry import register_action as register_action
    from everstep.loop.actions.weights import EMACheckpointing as EMACheckpointing

_WHERE = {
    "BestCheckpointExporter": "everstep.loop.actions.best_checkpoint",
    "ConditionalAction": "everstep.loop.actions.conditional",
    "EMACheckpointing": "everstep.loop.actions.weights",
    "EarlyStopping": "everstep.loop.actions.early_stopping",
    "ExportFileManager": "everstep.loop.actions.export_saved_model",
    "ExportSavedModel": "everstep.loop.actions.export_saved_model",
    "JSONPersistedValue": "everstep.loop.actions.conditional",
    "NewBestMetric": "everstep.loop.actions.conditional",
    "get_eval_actions": "everstep.loop.actions.from_config",
    "get_train_actions": "everstep.loop.actions.from_config",
    "maybe_create_best_ckpt_exporter": "everstep.loop.actions.best_checkpoint",
    "register_action": "everstep.loop.actions.registry",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
