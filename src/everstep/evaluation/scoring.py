"""One batch, one metric: a column of numbers, each of them checked.

User code is called here and nowhere else, so here an error gets the names that a person needs: of the metric, of the
sample, and of the line that failed.
"""

import math
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation import arrays
from everstep.evaluation.metric import SampleMetric


def scores(metric: SampleMetric, ids: Sequence[str], y_true: Any, y_pred: Any) -> np.ndarray:
    """Returns the metric's number for each sample, as float64.

    Raises:
      UsageError: The function fails, or what it returns is not one number per sample; names metric and sample.
    """
    if metric.vectorized:
        return _of_a_batch(metric, ids, y_true, y_pred)
    return _of_each_point(metric, ids, y_true, y_pred)


def _of_each_point(metric: SampleMetric, ids: Sequence[str], y_true: Any, y_pred: Any) -> np.ndarray:
    found = np.empty(len(ids))
    for i, name in enumerate(ids):
        try:
            value = metric.function(arrays.at(y_true, i), arrays.at(y_pred, i))
        except Exception as error:
            raise _failed(metric, f"sample {name!r}", error) from error
        found[i] = _number(metric, name, value)
    return found


def _number(metric: SampleMetric, name: str, value: Any) -> float:
    """Returns what the function gave as a float; the common types come first, for speed."""
    number = float(value) if isinstance(value, float | int | np.floating) else _from_tensor(value)
    if number is None or math.isinf(number):
        raise UsageError(
            f"metric {metric.name!r} returned {_shown(value)} for sample {name!r}: return one number, finite or NaN"
        )
    return number


def _from_tensor(value: Any) -> float | None:
    array = _numeric(value)
    return None if array is None or array.size != 1 else float(array.reshape(())[()])


def _of_a_batch(metric: SampleMetric, ids: Sequence[str], y_true: Any, y_pred: Any) -> np.ndarray:
    try:
        value = metric.function(y_true, y_pred)
    except Exception as error:
        raise _failed(metric, f"the batch from sample {ids[0]!r} to {ids[-1]!r}", error) from error
    array = _numeric(value)
    if array is None or array.size != len(ids) or array.shape[:1] != (len(ids),):
        raise UsageError(
            f"metric {metric.name!r} returned {_shown(value)} for the {len(ids)} samples from {ids[0]!r} to "
            f"{ids[-1]!r}: a vectorised function returns one number per sample"
        )
    return _finite_or_nan(metric, ids, array.reshape(-1).astype(np.float64))


def _finite_or_nan(metric: SampleMetric, ids: Sequence[str], values: np.ndarray) -> np.ndarray:
    infinite = np.isinf(values)
    if infinite.any():
        first = int(np.argmax(infinite))
        _number(metric, ids[first], float(values[first]))
    return values


def _numeric(value: Any) -> np.ndarray | None:
    """Returns a real array, or None for what is none: texts, None, complex numbers, lists of unequal lengths."""
    try:
        array = arrays.host_array(value)
        return None if array.dtype.kind in "OSUcmM" else array.astype(np.float64)
    except (TypeError, ValueError):
        return None


def _failed(metric: SampleMetric, where: str, error: Exception) -> UsageError:
    if isinstance(error, AttributeError) and error.name == "numpy":
        return UsageError(
            f"metric {metric.name!r} calls .numpy() on {type(error.obj).__name__}, which has none{_line(error)}: "
            f"return the value itself, which is converted on every backend (on {where})"
        )
    kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
    text = str(error).strip().partition("\n")[0]
    return UsageError(f"metric {metric.name!r} failed on {where}: {kind}{text}{_line(error)}")


def _line(error: Exception) -> str:
    """Returns the line of the user's function that failed, not the one deep inside a library."""
    own = Path(__file__).parent
    frames = [f for f in traceback.extract_tb(error.__traceback__) if own not in Path(f.filename).parents]
    return "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in frames[:1])


def _shown(value: Any) -> str:
    text = " ".join(f"{value!r:.60}".split())
    shape = np.shape(value) if hasattr(value, "shape") else ()
    return f"{text} ({type(value).__name__}{f' of shape {tuple(shape)}' if shape else ''})"
