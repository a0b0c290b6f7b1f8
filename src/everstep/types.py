"""Types that every part of the package shares."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Batch = Any
"""One batch: any nesting of dicts, tuples and lists of arrays, samples along the first axis."""

Logs = dict[str, float]
"""The results of a window of training or of an evaluation: name to number."""

State = dict[str, np.ndarray]
"""Every variable of a run by its stable key, integers as int64."""

CLOCKS = ("steps_per_second", "samples_per_second", "mfu", "data_wait", "eval_seconds")
"""Names in logs that measure speed, not quality: they differ from run to run."""

StreamState = Mapping[str, Any]
"""A stream's position, as plain JSON values."""
