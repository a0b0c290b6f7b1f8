"""TFRecord datasets by the convention of training components: a folder, `train-*.tfrec`, `valid-*.tfrec`."""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from everstep.data.input_pipeline import Hooks, Reading
from everstep.data.record_arguments import shown, whole_number
from everstep.data.record_batches import RecordStream
from everstep.data.record_files import SPLITS, dataset_folder, naming_urls, record_files
from everstep.data.record_files import dataset_path as as_path
from everstep.data.record_frames import Content
from everstep.data.record_salvage import Salvaged
from everstep.data.record_source import RecordSource, count_records, identity
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError, nearest

Function = Callable[..., Any]

SHUFFLE_BUFFER = 2048
"""Records, still encoded, to draw the next one from."""


def identity_augmentation(x: Any, y: Any) -> tuple[Any, Any]:
    """Changes nothing."""
    return x, y


def get_train_ds(
    dataset: str | os.PathLike[str],
    read_func: Function,
    global_batch_size: int,
    percentage: float = 100,
    data_augmentation: Function = identity_augmentation,
    **settings: Any,
) -> RecordStream:
    """Returns the training data of a dataset: shuffled anew each epoch, in full batches.

    Args:
      dataset: The dataset's folder, with `train-*.tfrec`, or its URL in a store.
      read_func: Makes a sample of one record; called with the keyword `example`.
      global_batch_size: Samples per step.
      percentage: How much of it to use: `<dataset>-subset-<percentage>` where that is there, else a sample of it.
      data_augmentation: Changes a sample: `(x, y) -> (x, y)`.
      **settings: As for `get_tfrecord_dataset`.

    Raises:
      UsageError: As `get_tfrecord_dataset`.
    """
    folder, rest = dataset_folder(dataset, percentage)
    return get_tfrecord_dataset(
        folder, read_func, global_batch_size, "train", data_augmentation, percentage=rest, **settings
    )


def get_valid_ds(
    dataset: str | os.PathLike[str],
    read_func: Function,
    global_batch_size: int,
    percentage: float = 100,
    **settings: Any,
) -> RecordStream:
    """Returns the validation data of a dataset: `valid-*.tfrec`, in order, every sample once; see `get_train_ds`."""
    folder, rest = dataset_folder(dataset, percentage)
    return get_tfrecord_dataset(folder, read_func, global_batch_size, "valid", percentage=rest, **settings)


def get_tfrecord_dataset(
    dataset_path: str | os.PathLike[str],
    preprocessing: Function,
    global_batch_size: int,
    split: str | bool | None = None,
    data_augmentation: Function = identity_augmentation,
    *,
    is_train: bool | None = None,
    percentage: float = 100,
    seed: int = 0,
    shuffle_buffer: int = SHUFFLE_BUFFER,
    compression: str = "",
    on_corrupt: Literal["raise", "skip"] = "raise",
) -> RecordStream:
    """Returns the batches of a dataset's records.

        read = functools.partial(read_tfrecord, size=112, label_list=labels)
        train_ds = get_tfrecord_dataset("data/faces", read, 64, "train")

    Training data is shuffled across files in an order that follows from (seed, epoch), augmented, and cut into full
    batches; validation data comes in the order of its files, to the last sample. A resumed run gets the very next
    batch.

    Args:
      dataset_path: The folder of the record files, or its URL in a store: they are fetched once.
      preprocessing: Makes a sample of one serialised record, in TensorFlow; called with the keyword `example`.
      global_batch_size: Samples per step.
      split: `train` or `valid`: the beginning of the files' names.
      data_augmentation: Changes a training sample; called with what `preprocessing` returned.
      is_train: Instead of `split`: True for `train`, False for `valid`.
      percentage: How many of the records to read, always the same ones.
      seed: Decides, with the epoch, on the order of training data.
      shuffle_buffer: Records to draw the next one from.
      compression: Of the files: `""`, `"GZIP"` or `"ZLIB"`.
      on_corrupt: `raise` ends at a damaged record, and says where it is; `skip` leaves it out with a warning. That
        reads all files once at the start.

    Raises:
      NoRecordFiles: There is no such file; also a FileNotFoundError.
      UsageError: Something else cannot be done as asked, or a file is damaged.
    """
    tf = load_tensorflow("reading TFRecord files")
    training = _is_training(split, is_train)
    _check(on_corrupt)
    global_batch_size = whole_number("global_batch_size", global_batch_size)
    shuffle_buffer, seed = whole_number("shuffle_buffer", shuffle_buffer, 0), whole_number("seed", seed, 0)
    _require_keyword(preprocessing)
    names = record_files(as_path(dataset_path), SPLITS[0] if training else SPLITS[1])
    files = list(names)
    salvaged = _salvaged(tf, files, compression) if on_corrupt == "skip" else None
    readable = salvaged.files if salvaged else files
    contents = _counted(tf, readable, compression, names)
    _, percentage = dataset_folder("", percentage) if percentage != 100 else ("", 100)
    source = RecordSource(tf, readable, [each.records for each in contents], percentage, compression)
    _require_batches(source.size, global_batch_size, list(names.values()), training)
    hooks = Hooks(decode=lambda record: preprocessing(example=record), parse=_augmentation(data_augmentation, training))
    reading = Reading(global_batch_size, training, training, shuffle_buffer, seed, training)
    order = {"seed": seed, "shuffle_buffer": shuffle_buffer} if training else {}
    facts = {"files": identity(readable, contents), "percentage": percentage, "batch": global_batch_size, **order}
    return RecordStream(source, hooks, reading, facts, names, salvaged)


def _is_training(split: str | bool | None, is_train: bool | None) -> bool:
    if (split is None) == (is_train is None):
        raise UsageError(f"split: received split={split!r}, is_train={is_train!r}; say one: split='train' or 'valid'")
    if isinstance(split, str) and split not in SPLITS:
        raise UsageError(f"split: received {split!r}; {nearest(split, SPLITS)}")
    if not isinstance(split, str | bool | np.bool_ | None) or not isinstance(is_train, bool | np.bool_ | None):
        raise UsageError(f"split: received split={shown(split)}, is_train={shown(is_train)}; say 'train' or 'valid'")
    return split == SPLITS[0] if isinstance(split, str) else bool(split if is_train is None else is_train)


def _check(on_corrupt: str) -> None:
    if on_corrupt not in ("raise", "skip"):
        raise UsageError(f"on_corrupt: received {on_corrupt!r}; {nearest(str(on_corrupt), ('raise', 'skip'))}")


def _require_keyword(preprocessing: Function) -> None:
    """Refuses a function that cannot be called with `example=` alone; what a partial has bound counts."""
    if not callable(preprocessing):
        raise UsageError(f"preprocessing: received {preprocessing!r}, expected a function of one record")
    try:
        inspect.signature(preprocessing).bind(example=b"")
    except TypeError as error:
        raise UsageError(
            f"preprocessing: it is called with the keyword example= and nothing else, which does not fit: {error}; "
            "bind the others, as in functools.partial(read_tfrecord, size=112)"
        ) from None
    except ValueError:  # a function in another language says nothing of its parameters
        return


def _augmentation(function: Function, training: bool) -> Function | None:
    return function if training and function is not identity_augmentation else None


def _require_batches(records: int, batch: int, files: list[str], training: bool) -> None:
    if not records:
        raise UsageError(f"{files[0]!r} and {len(files) - 1} more have no record at all: write them again")
    if training and records < batch:
        raise UsageError(
            f"global_batch_size: received {batch}, but there are {records} training records in "
            f"{os.path.dirname(files[0])!r}, and only full batches are trained on: take at most {records}"
        )


def _counted(tf: Any, files: list[str], compression: str, names: Mapping[str, str]) -> list[Content]:
    try:
        return count_records(tf, files, compression)
    except UsageError as error:
        raise naming_urls(error, names) from error


def _salvaged(tf: Any, files: list[str], compression: str) -> Salvaged:
    if compression:
        raise UsageError("on_corrupt: 'skip' needs files without compression: write them again")
    return Salvaged(tf, files)
