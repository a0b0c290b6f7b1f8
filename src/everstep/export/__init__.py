"""Export: a trained model in formats that others load.

    from everstep.export import export_model

    export_model(model, "serving/digits")                                # a Keras model
    export_model("runs/digits", "serving/best", checkpoint="best")       # the model of a run

`export_model` writes every format that the backend has. `ExportModule` and `export` write SavedModels with
preprocessing, several signatures and numbered versions; `CheckpointExports` keeps one for every checkpoint of a run.
There is one file per format. Each export is written under a temporary name, loaded back and compared with the live
model before it gets its own: an exported file that exists is one that works.

The names below are loaded when first used: commands import parts of this package before the backend is chosen.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.export.checkpoint_exports import CheckpointExports as CheckpointExports
    from everstep.export.keras_file import export_keras as export_keras
    from everstep.export.model_export import load_checkpoint as load_checkpoint
    from everstep.export.run_export import export_model as export_model
    from everstep.export.saved_model import export_saved_model as export_saved_model
    from everstep.export.serving import ExportModule as ExportModule
    from everstep.export.serving import export as export
    from everstep.export.torch_program import export_torch_program as export_torch_program

_WHERE = {
    "CheckpointExports": "everstep.export.checkpoint_exports",
    "ExportModule": "everstep.export.serving",
    "export": "everstep.export.serving",
    "export_keras": "everstep.export.keras_file",
    "export_model": "everstep.export.run_export",
    "export_saved_model": "everstep.export.saved_model",
    "export_torch_program": "everstep.export.torch_program",
    "load_checkpoint": "everstep.export.model_export",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
