"""A trained model, found by the name of its run or file: loaded, used for predictions, exported again.

    from everstep import predict
    outputs = predict("runs/digits", images)

finding.py     the model that a name stands for
models.py      loads models that others may have written, without running their code
inputs.py      data to predict on: arrays, images, tables, TFRecords
predicting.py  runs a model over data in batches, in constant memory; writes a row for each sample
outputs.py     outputs as rows of a file
run_export.py  `export_model`: the model of a run, with the weights of one of its checkpoints
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.trained.finding import (
        Found,
        find,
        local_run,
        opened,
        run_of,
    )
    from everstep.trained.models import (
        KerasPredictor,
        load_keras,
        load_run_checkpoint,
    )
    from everstep.trained.outputs import check_output
    from everstep.trained.predicting import (
        PredictOptions,
        predict,
        predictor_of,
        write_predictions,
    )
    from everstep.trained.run_export import (
        export_model,
        export_run,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
