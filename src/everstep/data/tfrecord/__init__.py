"""TFRecord files: the one source of their records, and its users.

`Source.records` is what everybody reads: the records of one pass, whose order follows from (seed, epoch). A position
is a number of batches of it, which `InputStream` skips. The format itself, without TensorFlow, is
`formats/tfrecord.py`.

sources.py         which files a pass reads, in which order; a file found damaged while it is read is named
folders.py         folders with `train-*.tfrec`, `valid-*.tfrec`, `labels.txt`
dataset.py         `get_tfrecord_dataset`: batches of such a folder's records, whose files are checked when it opens
inspection.py      what is in files, and which records are damaged; files without them, for `on_corrupt="skip"`
writing.py         examples, and files of them
dataset_writing.py folders of such files, from arrays or images
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.data.tfrecord.dataset import (
        get_tfrecord_dataset,
        get_train_ds,
        get_valid_ds,
    )
    from everstep.data.tfrecord.dataset_writing import (
        Written,
        write_arrays,
        write_images,
    )
    from everstep.data.tfrecord.folders import get_labels
    from everstep.data.tfrecord.inspection import (
        Feature,
        Inspection,
        differences,
        inspect,
    )
    from everstep.data.tfrecord.sources import (
        read_columns,
        read_examples,
        record_files,
    )
    from everstep.data.tfrecord.writing import (
        TfExampleBuilder,
        TfExampleFeatureKeyBase,
        write_tfrecords,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
