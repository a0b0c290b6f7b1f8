"""What Kubeflow Pipelines shows of a component: a TensorBoard to open, and numbers in a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def ui_metadata(logs: str) -> dict[str, Any]:
    """Returns the content of `mlpipeline-ui-metadata.json`: where TensorBoard finds its events."""
    return {"outputs": [{"type": "tensorboard", "source": logs}]}


def metrics(history: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns the content of `mlpipeline-metrics.json`: the last value of each metric that is a finite number.

    An accuracy is shown in percent.
    """
    last = {name: float(values[-1]) for name, values in history.items() if len(values)}
    return {"metrics": [_metric(name, value) for name, value in last.items() if math.isfinite(value)]}


def _metric(name: str, value: float) -> dict[str, Any]:
    is_share = "acc" in name and 0 <= value <= 1
    return {"name": name, "numberValue": value, "format": "PERCENTAGE" if is_share else "RAW"}
