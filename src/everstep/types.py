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

StreamState = Mapping[str, Any]
"""A stream's position; plain JSON values."""
