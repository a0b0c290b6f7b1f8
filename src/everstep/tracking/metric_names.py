"""What the name of a metric implies: training or validation data, and whether higher or lower is better."""

import re

from everstep.types import CLOCKS

SIDE_FIGURES = (*CLOCKS, "learning_rate", "optimizer_updates", "epoch")
"""Names in logs that are no metrics: speed, and the optimizer's settings."""

_PREFIX = re.compile(r"(^|/)(training|validation|val)_")
_HIGHER = ("accuracy", "acc", "auc", "iou", "dice", "precision", "recall", "f1", "score", "tpr", "tnr", "r2")
_LOWER = ("loss", "error", "mae", "mse", "rmse", "entropy", "perplexity")


def direction(name: str) -> str | None:
    """Returns which values of a metric are better, `higher` or `lower`; None if its name does not imply it."""
    words = name.lower().replace("/", "_").replace("-", "_").split("_")
    if any(word in _LOWER for word in words):
        return "lower"
    return "higher" if any(word in _HIGHER for word in words) else None


def bare(name: str) -> str:
    """Returns a metric's name without the prefix for training or validation: `validation_loss` is `loss`."""
    match = _PREFIX.search(name)
    return name[: match.start(2)] + name[match.end() :] if match else name


def of_validation(name: str) -> bool:
    """Returns whether a name has a prefix for validation."""
    match = _PREFIX.search(name)
    return match is not None and match[2] != "training"
