"""What `model.fit` takes as x, y and sample_weight, as one source of data.

Arrays are separate or in a tuple, `(x, y)` or `(x, y, sample_weight)`. Each may be nested, for a model with several
inputs or outputs. Anything else, such as a dataset, contains labels and weights.
"""

import contextlib
import dataclasses
import functools
import math
import numbers
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from everstep.data import ArrayStream, DataConfig, Rows, as_rows, count_samples, is_arrays, is_sparse_or_ragged, nest
from everstep.data.formats import CSV_SUFFIXES, PARQUET_SUFFIXES, RECORD_SUFFIXES
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.engine import check_leaves
from everstep.errors import UsageError, kind_of

_APART = "validation data goes in as validation_data=(x_test, y_test)"


def training_data(
    x: Any,
    y: Any,
    sample_weight: Any,
    inputs: int | None = None,
    needs_labels: bool = False,
    takes_text: bool = False,
) -> Any:
    """Returns one source of data for a stream.

    Args:
      x: Inputs as arrays or a list of texts, or a tuple with labels and weights, or another source.
      y: Labels, where x is inputs alone.
      sample_weight: The weight of each sample in the loss.
      inputs: How many inputs the model has; None if unknown.
      needs_labels: Whether the model's loss compares with labels.
      takes_text: Whether the model has a preprocessor, which makes numbers of text.

    Raises:
      UsageError: There is no data, or its parts do not fit together.
    """
    x, y, sample_weight = _texts(x), _column(y), _column(sample_weight)
    if x is None:
        raise UsageError("nothing to train on", key="x", remedy="pass arrays, as fit(model, x, y), or a dataset")
    refuse_name("x", x)
    if not is_arrays(x):
        _require_alone(x, y, sample_weight)
        return x
    if y is None and isinstance(x, tuple) and len(x) in (2, 3):
        return _packed(*_unpacked(x, sample_weight), takes_text=takes_text)
    if y is None:
        return _unlabelled(x, sample_weight, needs_labels)
    _require_labels(x, y, inputs)
    return _packed(x, y, sample_weight, takes_text=takes_text)


def evaluation_data(data: Any, needs_labels: bool = False, takes_text: bool = False) -> Any:
    """Returns the same for an evaluation: `(x, y)`, `(x, y, sample_weight)`, or another source.

    Raises:
      UsageError: It is arrays without labels, and the model's loss compares with labels.
    """
    refuse_name("validation_data", data)
    if isinstance(data, list | tuple) and len(data) in (2, 3):
        parts = [_texts(data[0]), *map(_column, data[1:])]
        if is_arrays(parts):
            with _as_validation_data():
                return _packed(*parts, takes_text=takes_text)
    if needs_labels and is_arrays(data):
        raise UsageError(
            "has inputs but no labels, and the model's loss needs them",
            key="validation_data",
            remedy="pass (x_test, y_test), or (x_test, x_test) for a model that reproduces its inputs",
        )
    return data


def refuse_name(key: str, data: Any) -> None:
    """Refuses the name of a file or folder, and a configuration, where data is expected.

    Raises:
      UsageError: It is one; says what reads it.
    """
    if isinstance(data, DataConfig):
        reader = "ImageSource(config)" if isinstance(data, ImageDataConfig) else "InputReader(config).read(), say"
        raise UsageError(f"is {kind_of(data)}, which only names data", key=key, remedy=f"pass {reader}")
    if not isinstance(data, str | os.PathLike):
        return
    name = os.fspath(data)
    if not os.path.exists(name):
        remedy = f"no such file or folder is in {os.getcwd()!r}; pass arrays, as fit(model, x, y), or a dataset"
    elif os.path.isdir(name):
        remedy = (
            "of a folder with a folder of images for each class, pass ImageSource(ImageDataConfig("
            f"input_path={name!r}, size=…)), from everstep.data.images, or "
            f"keras.utils.image_dataset_from_directory({name!r})"
        )
    else:
        remedy = next((how for ends, how in _READERS.items() if name.lower().endswith(ends)), _OTHER).format(name=name)
    raise UsageError("is the name of data, not data", key=key, received=name, remedy=remedy)


_READERS = {
    CSV_SUFFIXES: "read it, as in table = pandas.read_csv({name!r}), and pass columns: fit(model, table[['a', 'b']], "
    "table['label']); of images that it names, pass ImageSource(ImageDataConfig(input_path={name!r}, size=…))",
    PARQUET_SUFFIXES: "pass ParquetSource({name!r}, x=['a', 'b'], y='label'), from everstep.data",
    (".npy", ".npz"): "load it, as in data = numpy.load({name!r}), and pass the arrays",
    RECORD_SUFFIXES: "pass InputReader(DataConfig(input_path={name!r}), parser_fn=…).read(), from everstep.data",
}
"""How files are read, by the ends of their names."""

_OTHER = "read it, and pass arrays, as fit(model, x, y), or a dataset"


@contextlib.contextmanager
def _as_validation_data() -> Iterator[None]:
    """Inside the block errors name `validation_data`, and say of which part they are."""
    try:
        yield
    except UsageError as error:
        renamed = [
            dataclasses.replace(problem, key="validation_data", reason=f"{problem.key} {problem.reason}")
            if problem.key != "x, y"
            else dataclasses.replace(problem, key="validation_data")
            for problem in error.problems
        ]
        raise UsageError(renamed) from error


def split(source: Any, fraction: Any) -> tuple[Any, Any]:
    """Splits off the last part of arrays for the evaluation.

    Args:
      source: What `training_data` returned.
      fraction: The share that is split off.

    Returns:
      The training data, and the validation data.

    Raises:
      UsageError: The fraction is invalid, a part would be empty, or the data is no arrays.
    """
    if not isinstance(fraction, int | float | np.floating) or not 0 <= fraction < 1:
        raise UsageError("expected a number from 0 up to, not including, 1", key="validation_split", received=fraction)
    if not is_arrays(source):
        raise UsageError(
            f"only arrays can be split, and x is a {type(source).__name__}",
            key="validation_split",
            received=fraction,
            remedy=_how_to_split(source, fraction),
        )
    count = samples_in(source) or 0
    at = math.floor(count * (1.0 - float(fraction)))
    if at in (0, count):
        raise UsageError(f"leaves one part of {count} samples empty", key="validation_split", received=fraction)
    arrays = nest.map_leaves(as_rows, source)
    return nest.map_leaves(lambda leaf: leaf[:at], arrays), nest.map_leaves(lambda leaf: leaf[at:], arrays)


def _how_to_split(source: Any, fraction: Any) -> str:
    """Returns what splits data that is no arrays."""
    if isinstance(source, ImageSource):
        return f"set it where the images are named: ImageDataConfig(…, validation_split={fraction})"
    if hasattr(source, "file_paths"):
        return (
            "let Keras's loader split: train, valid = keras.utils.image_dataset_from_directory(…, subset='both', "
            f"validation_split={fraction}, seed=0), and pass validation_data=valid"
        )
    return "pass validation_data"


def samples_in(source: Any) -> int | None:
    """Returns how many samples arrays have; None for other sources.

    Raises:
      UsageError: The arrays have different numbers of samples, or cannot be read.
    """
    if not is_arrays(source):
        return None
    arrays = nest.map_leaves(as_rows, source)
    if any(isinstance(leaf, Rows) for leaf in nest.flatten(arrays)):
        return count_samples(arrays)
    return ArrayStream(source, 1).batches_per_epoch


def _require_alone(x: Any, y: Any, sample_weight: Any) -> None:
    """Refuses labels and weights for a source that has its own."""
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            if isinstance(x, list):
                raise UsageError("lists of Python numbers are not supported", key="x", remedy="pass np.array(x)")
            raise UsageError(
                f"x is a {type(x).__name__}, which has to contain it",
                key=name,
                remedy=f"yield (x, y, weight){f'; {_APART}' if name == 'y' else ''}",
            )


def _require_labels(x: Any, y: Any, inputs: int | None) -> None:
    """Refuses values that are no labels, such as validation data in their place."""
    if not is_arrays(y):
        if isinstance(y, list):
            raise UsageError("lists of Python numbers are not supported", key="y", remedy="pass np.array(y)")
        raise UsageError(f"expected arrays, not a {type(y).__name__}", key="y", remedy=_APART)
    pairs = isinstance(x, tuple) and isinstance(y, tuple)
    if pairs and (inputs == 1 or len(x[0]) != len(y[0])):
        raise UsageError(f"a tuple beside x=({len(x)} arrays)", key="y", remedy=f"write fit(model, x, y, …); {_APART}")


def _unpacked(data: tuple[Any, ...], sample_weight: Any) -> tuple[Any, ...]:
    if sample_weight is None:
        return data
    if len(data) == 3:
        raise UsageError("x=(x, y, weight) has weights already", key="sample_weight", remedy="pass them once")
    return (*data, sample_weight)


def _unlabelled(x: Any, sample_weight: Any, needs_labels: bool) -> Any:
    if sample_weight is not None:
        raise UsageError("there are no labels, y, to weight", key="sample_weight")
    if needs_labels:
        raise UsageError(
            "missing, and the model's loss needs it",
            key="y",
            remedy="pass y, or y=x for a model that reproduces its inputs",
        )
    x = nest.map_leaves(functools.partial(_as_keras, "x"), x)
    return (x,) if isinstance(x, list) else x  # several inputs; a tuple would be inputs and labels


def _texts(x: Any) -> Any:
    """Returns inputs with each list of texts as an array; a list of anything else is several inputs."""
    if isinstance(x, dict):
        return {name: _texts(part) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(map(_texts, x))
    return np.array(x) if isinstance(x, list) and x and all(isinstance(part, str) for part in x) else x


def _column(values: Any) -> Any:
    """Returns labels or weights that are a list of numbers, one for each sample, as an array."""
    is_flat = isinstance(values, list) and values and all(isinstance(value, numbers.Real) for value in values)
    return np.array(values) if is_flat else values


def _packed(x: Any, y: Any, sample_weight: Any = None, *, takes_text: bool = False) -> Any:
    parts = {"x": x, "y": y, "sample_weight": sample_weight}
    x, y, weight = (nest.map_leaves(functools.partial(_as_keras, key), part) for key, part in parts.items())
    data = (x, y) if weight is None else (x, y, _of_each_output(y, weight))
    if not takes_text:  # else it is checked when it is preprocessed
        check_leaves(nest.map_leaves(_checkable, data))
    counts = {name: {len(leaf) for leaf in leaves} for name, leaves in _named_leaves(data).items()}
    if len(set().union(*counts.values())) > 1:
        listed = ", ".join(f"{name} has {' and '.join(map(str, sorted(count)))}" for name, count in counts.items())
        raise UsageError(f"different numbers of samples: {listed}", key="x, y", remedy="pass as many of each")
    return data


def _named_leaves(data: tuple[Any, ...]) -> dict[str, list[Any]]:
    parts = zip(("x", "y", "sample_weight"), data, strict=False)
    return {name: nest.flatten(nest.map_leaves(as_rows, part)) for name, part in parts}


def _checkable(leaf: Any) -> Any:
    """Returns the part of an array that is checked: nothing of a sparse or ragged one."""
    return np.zeros(1) if isinstance(leaf, Rows) or is_sparse_or_ragged(leaf) else leaf


def _as_keras(key: str, leaf: Any) -> Any:
    """Returns a pandas Series as a table of one column, as Keras does, and a table of several types as an array.

    Raises:
      UsageError: A table has columns of numbers and of text, or of Python objects; or a single value is no array.
    """
    if getattr(leaf, "shape", None) == ():
        raise UsageError("is a single value, expected one for each sample", key=key, received=leaf)
    if hasattr(leaf, "to_frame"):
        leaf = leaf.to_frame()
    if hasattr(leaf, "dtypes") and hasattr(leaf, "columns"):
        odd = [name for name in leaf.columns if not _is_numbers(leaf[name])]
        if odd and len(leaf.columns) > 1:
            example = leaf[odd[0]].iloc[0]
            raise UsageError(
                f"the column {odd[0]!r} of the DataFrame holds no numbers, but {example!r}",
                key=key,
                remedy=f"convert it, as pd.get_dummies(df, columns=[{odd[0]!r}]) or "
                f"df[{odd[0]!r}].astype('category').cat.codes do",
            )
        if not odd and np.asarray(leaf).dtype == object:
            return _as_numbers(leaf)
    return leaf


def _as_numbers(table: Any) -> np.ndarray:
    """Returns a table of numbers of several types as an array: floats, as in Keras, or integers if there are none."""
    columns = [np.asarray(table.iloc[:, number]) for number in range(len(table.columns))]
    has_floats = any(column.dtype.kind == "f" for column in columns)
    dtype = keras.config.floatx() if has_floats else np.result_type(*(column.dtype for column in columns))
    return np.stack([column.astype(dtype) for column in columns], axis=1)


def _is_numbers(column: Any) -> bool:
    try:
        return np.asarray(column).dtype.kind in "fiub"
    except (TypeError, ValueError):
        return False


def _of_each_output(y: Any, weight: Any) -> Any:
    """Returns weights nested like the labels: one array serves all outputs."""
    if not isinstance(y, dict | list | tuple):
        return weight
    if not isinstance(weight, dict | list | tuple):
        if math.prod(np.shape(weight)[1:]) != 1:
            shape = list(np.shape(weight))
            raise UsageError(
                "expected one weight per sample, for several outputs",
                key="sample_weight",
                received=f"shape {shape}",
                remedy="pass one array for each output",
            )
        return nest.map_leaves(lambda _: weight, y)
    if nest.structure(y) != nest.structure(weight):
        raise UsageError("expected one array for all outputs, or as many and named as those of y", key="sample_weight")
    return weight
