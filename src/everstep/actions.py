"""Actions: what is called with the logs after a loop or an evaluation, and what a run brings along of them.

    from everstep.actions import ConditionalAction, NewBestMetric, register_action

The names below are loaded when first used: a module that only registers an action loads neither Keras nor a backend.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.loop.actions import (
        BestCheckpointExporter,
        ConditionalAction,
        EarlyStopping,
        EMACheckpointing,
        ExportFileManager,
        ExportSavedModel,
        JSONPersistedValue,
        NewBestMetric,
        get_eval_actions,
        get_train_actions,
        maybe_create_best_ckpt_exporter,
        register_action,
    )


__getattr__, __dir__ = lazy_names(__name__, __file__)
