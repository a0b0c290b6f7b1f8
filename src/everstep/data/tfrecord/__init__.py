"""TFRecord files: the one source of their records, and its users.

`Source.records` is what everybody reads: the records of one pass, whose order follows from (seed, epoch). A position
is a number of batches of it, which `InputStream` skips. The format itself, without TensorFlow, is
`formats/tfrecord.py`.

sources.py          which files a pass reads, in which order (shuffled files, 8 at a time), and their compression: as
                    the user says, never guessed; a damaged file is named
folders.py          folders with `train-*.tfrec`, `valid-*.tfrec`, `labels.txt`: which names count; `percentage`; "no
                    such folder"
dataset.py          `get_tfrecord_dataset`, `get_train_ds`, `get_valid_ds`: shuffle buffer 2048, full batches in
                    training, `percentage`, `on_corrupt`, the record on which preprocessing fails
inspection.py       `everstep records inspect`: what is in files, which records are damaged; `on_corrupt="skip"`
                    writes files without those
writing.py          examples, and files of them: compression, shards; refuses fewer examples than shards, leftovers of
                    another number of shards
dataset_writing.py  `everstep records write`: folders of such files from arrays or images: types, classes in
                    `labels.txt`, order
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
