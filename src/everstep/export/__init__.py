"""Export: a trained model in formats that others load.

    from everstep.export import export_model

    export_model(model, "serving/digits")                                # a Keras model
    export_model("runs/digits", "serving/best", checkpoint="best")       # the model of a run

`export_model` writes every format that the backend has. `ExportModule` and `export` write SavedModels with
preprocessing, several signatures and numbered versions; `CheckpointExports` keeps one for every checkpoint of a run.
There is one file per format; `register_format` adds one of your own. Each export is written under a temporary name,
loaded back and compared with the live model before it gets its own: an exported file that exists is one that works.

model_export.py        a model, in every format that the backend has
formats.py             the formats by name; those of other packages
keras_file.py          `model.keras`
saved_model.py         `saved_model/`
torch_program.py       `model.pt2`
hub_preset.py          a KerasHub preset, LoRA adapters, a folder for Transformers
comparison.py          an exported model compared with the live one
serving.py             `ExportModule` and `export`
versions.py            numbered versions, as TensorFlow Serving watches them
checkpoint_exports.py  a SavedModel for every checkpoint
jax_bridge.py          Keras code of JAX, called with TensorFlow's tensors
open_sizes.py          sizes that a model leaves open, on JAX
dequantized.py         a quantized KerasHub model in floating point
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.export import saved_model
    from everstep.export.checkpoint_exports import CheckpointExports
    from everstep.export.formats import (
        SAVED_MODEL,
        ExportFormat,
        file_of,
        register_format,
    )
    from everstep.export.keras_file import export_keras
    from everstep.export.model_export import (
        chosen_formats,
        evaluated_weights,
        export_all,
        load_checkpoint,
        refuse_non_finite,
        sample_inputs,
        serving_format,
    )
    from everstep.export.saved_model import (
        declared_inputs,
        export_saved_model,
    )
    from everstep.export.serving import (
        ExportModule,
        export,
    )
    from everstep.export.torch_program import (
        ExportedProgram,
        export_torch_program,
    )
    from everstep.trained import export_model

__getattr__, __dir__ = lazy_names(__name__, __file__)
