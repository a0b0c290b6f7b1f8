"""Which record a user's function failed on: TensorFlow's own errors name an operation, not the data."""

from collections.abc import Callable, Sequence
from typing import Any

from everstep.data.files import ReadFile, first_line
from everstep.errors import UsageError

_SHORT = 40


def blamed(
    tf: Any, error: Exception, files: Sequence[tuple[str, ReadFile]], preprocess: Callable[[Any], Any]
) -> UsageError:
    """Returns the error that names the record on which `preprocess` fails, and what is in it.

    Args:
      tf: The module `tensorflow`.
      error: What TensorFlow said.
      files: The files, and how each is read.
      preprocess: The function, of one record.
    """
    said = first_line(error)
    for file, read in files:
        number = _failing(tf, file, read, preprocess)
        if number is not None:
            record = next(iter(read(tf.constant(file)).skip(number)))
            return UsageError(
                f"preprocessing fails on record {number} of {file!r} ({_contents(tf, record)}): {said}{_cause(said)}; "
                "correct the record, or the function"
            )
    return UsageError(f"the records are read, but not made batches: {said}; look at data_augmentation and the shapes")


def _cause(said: str) -> str:
    """Returns what usually lies behind TensorFlow's words."""
    return " (nothing was found: is the label in labels.txt?)" if "slice index" in said else ""


def _failing(tf: Any, file: str, read: ReadFile, preprocess: Callable[[Any], Any]) -> int | None:
    samples = read(tf.constant(file)).map(preprocess, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    count, iterator = 0, iter(samples)
    while True:
        try:
            next(iterator)
        except StopIteration:
            return None
        except tf.errors.OpError:
            return count
        count += 1


def _contents(tf: Any, record: Any) -> str:
    """Returns the short features of an example in words."""
    try:
        features = tf.train.Example.FromString(record.numpy()).features.feature
    except Exception:  # the decoder's own kind of error: it is no example
        return f"{len(record.numpy())} bytes that are no tf.train.Example"
    shown = {name: _value(features[name]) for name in sorted(features)}
    return ", ".join(f"{name}={text}" for name, text in shown.items() if text) or "no short features"


def _value(feature: Any) -> str:
    kind = feature.WhichOneof("kind")
    values = list(getattr(feature, kind).value) if kind else []
    if len(values) != 1:
        return ""
    value = values[0].decode("utf-8", "replace") if isinstance(values[0], bytes) else values[0]
    text = repr(value)
    return text if len(text) <= _SHORT else ""
