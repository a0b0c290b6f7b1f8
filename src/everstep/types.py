"""The words every layer shares."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Batch = Any
"""One batch: any nesting of dicts, tuples and lists of arrays, samples along the first axis."""

Logs = dict[str, float]
"""What a window of training or an evaluation has to say: name to number."""

State = dict[str, np.ndarray]
"""Every variable of a run by its stable key, integers as int64."""

CLOCKS = ("steps_per_second", "samples_per_second", "mfu", "data_wait", "eval_seconds")
"""Names in logs that say how fast it went, not how good it is: no two runs agree on them."""

StreamState = Mapping[str, Any]
"""A stream's position; plain JSON values."""
