"""A trained model, found by the name of its run or file: loaded, used for predictions, exported again.

    from everstep import predict
    outputs = predict("runs/digits", images)

finding.py     the model that a name stands for: a run, a file, a run's id, MLflow's artifacts; which of several;
               PyTorch programs are refused
models.py      loads `.keras` files and SavedModels without running their code: what is refused: files that would unpack
               to many times their size, Lambda layers
inputs.py      data to predict on: arrays, images, tables, TFRecords (uncompressed); which column or array is which
               input, the types in which a table's columns are read, ids, NaN, `--without`, `--resize`
labelled.py    data with labels: which array, column or folder is the label, names of classes as numbers
recorded.py    the data that a run of `fit` was validated on, where its record names it
evaluating.py  a model on data with labels: its batches, one-hot labels, several outputs; sample by sample
raw_inputs.py  texts and images for a task of KerasHub, which preprocesses them itself
predicting.py  `predict`, `write_predictions`: batch size 256, progress, which weights (`checkpoint`)
outputs.py     outputs as rows of a CSV or Parquet file: names of columns, class and probability, classification or
               regression; an existing file is refused
loading.py     `load`: a run as one object: model, classes, history by Keras's names, samples; which weights are best
run_export.py  `export_model`: a model, or that of a run with the weights of a checkpoint; formats that must succeed
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.trained.evaluating import (
        LabelledBatches,
        output_size,
        split_name,
        write_samples,
    )
    from everstep.trained.finding import (
        Found,
        find,
        local_run,
        opened,
        run_of,
    )
    from everstep.trained.labelled import LabelledData
    from everstep.trained.loading import (
        TrainedRun,
        load,
    )
    from everstep.trained.models import (
        KerasPredictor,
        compile_as_saved,
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
    from everstep.trained.recorded import (
        RecordedData,
        RecordedInputs,
        recorded_source,
    )
    from everstep.trained.run_export import (
        export_model,
        export_run,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
