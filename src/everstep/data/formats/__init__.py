"""One reader for each format of files that others wrote: the same limits and the same pixels for everybody.

| files | reader |
|---|---|
| JPEG, PNG and other images | `decode`: upright, 8 bits, no more pixels than Pillow's limit |
| `.npy`, `.npz` | `NumpyFile`: nothing is unpickled |
| CSV, TSV, Parquet, by columns | `read_csv`, `open_csv`, `read_parquet`, `open_parquet`: checksums are verified |
| TFRecord | `whole_frames`, `features`; `read_examples` of `everstep.data` verifies the checksums of records |
| CSV, JSON lines, Parquet and others, by rows | `open_records` of `everstep.data.records` |

A reader raises `BadFile`, which says what is wrong with the file; its caller knows the setting that named it.

bad_file.py     the error of every reader; the setting that named the file is added by its caller
images.py       JPEG, PNG, WebP and others to pixels: turned upright (EXIF), 8 bits, channels; too large or damaged
                ones are refused; sizes are changed by the caller
numpy_files.py  arrays in `.npy` and `.npz`: no pickles, damaged files; rows read one after the other
tables.py       CSV and Parquet by columns: separator, encoding, missing values; types as the caller says, else as
                Arrow infers for each file; for predictions the caller is `trained/inputs.py`
tfrecord.py     where the records of an uncompressed TFRecord file are, and what an example holds, without TensorFlow;
                gzip is only recognized, for errors (compression: `tfrecord/sources.py`)
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.data.formats.bad_file import BadFile
    from everstep.data.formats.images import (
        MODES,
        SUFFIXES,
        decode,
        upright_size,
    )
    from everstep.data.formats.numpy_files import (
        NumpyFile,
        StoredRows,
    )
    from everstep.data.formats.tables import (
        CSV_SUFFIXES,
        PARQUET_SUFFIXES,
        CsvOptions,
        as_bad_file,
        open_csv,
        open_parquet,
        read_csv,
        read_parquet,
        separator,
    )
    from everstep.data.formats.tfrecord import (
        RECORD_SUFFIXES,
        FeatureValues,
        whole_frames,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
