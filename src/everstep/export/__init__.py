"""Export: a trained model in formats that others load.

    from everstep.export import export_model

    export_model(model, "serving/digits")                                # a Keras model
    export_model("runs/digits", "serving/best", checkpoint="best")       # the model of a run

`export_model` writes every format that the backend has. `ExportModule` and `export` write SavedModels with
preprocessing, several signatures and numbered versions; `CheckpointExports` keeps one for every checkpoint of a run.
There is one file per format; `register_format` adds one of your own. Each export is written under a temporary name,
loaded back and compared with the live model before it gets its own: an exported file that exists is one that works.

model_export.py        which formats a model gets (all that it can have, others with a warning), averaged weights, the
                       batch that is compared; those asked for by name must succeed: `trained/run_export.py`; "its input
                       … is no key of the batch"
formats.py             the formats by name, their files; `register_format` and formats of other packages
keras_file.py          `model.keras`: loaded back in safe mode; "cannot be loaded again without its code"
saved_model.py         `saved_model/`: signature, open sizes, on JAX and TensorFlow; refuses PyTorch, folders that are
                       no SavedModel
torch_program.py       `model.pt2`: which dimensions may vary; "PyTorch cannot export it"
hub_preset.py          a KerasHub preset, LoRA adapters, a folder for Hugging Face Transformers: what is merged and
                       scaled, what would be lost
comparison.py          an exported model compared with the live one: the tolerance (1e-5; 1e-2 in half precision or
                       on an accelerator)
serving.py             `ExportModule` and `export`: preprocessing, several signatures, inputs whose shape is unknown,
                       names of outputs
versions.py            numbered versions, as TensorFlow Serving watches them: the time in seconds
checkpoint_exports.py  a SavedModel for every checkpoint that a run keeps; deleted with it
jax_bridge.py          Keras code of JAX, called with TensorFlow's tensors
open_sizes.py          how JAX spells sizes that are open; which are open: `saved_model.py`
dequantized.py         a quantized KerasHub model in floating point
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.export import saved_model
    from everstep.export.checkpoint_exports import CheckpointExports
    from everstep.export.comparison import unchanged
    from everstep.export.formats import (
        SAVED_MODEL,
        ExportFormat,
        file_of,
        register_format,
    )
    from everstep.export.keras_file import (
        export_keras,
        quiet_about_optimizer,
    )
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
