"""What the name of a metric implies: training or validation data, and whether higher or lower is better."""

import re
from collections.abc import Mapping
from typing import Any

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


def spellings(name: str) -> list[str]:
    """Returns the columns in which a metric may be logged: Keras's `val_loss` is `validation_loss`."""
    for one, other in (("val_", "validation_"), ("validation_", "val_")):
        if name.startswith(one):
            return [name, f"{other}{name.removeprefix(one)}"]
    return [name, f"training_{name}"]


def find_logged(name: str, metrics: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """Returns the kind and the key of a metric in logs by kind; None if it is not there.

    `val_loss`, `validation_loss` and `loss` all find the loss of the validation; a name without a prefix is that of the
    training where the validation has none.

        find_logged("val_accuracy", {"train": {"accuracy": 0.9}, "validation": {"accuracy": 0.8}})
        # ("validation", "accuracy")
    """
    name = re.sub(r"^train_", "training_", name)
    kinds: tuple[str, ...] = ("validation", "train")
    if (short := bare(name)) != name:
        kinds = ("validation",) if of_validation(name) else ("train",)
    for kind in kinds:
        for key in (name, *metrics.get(kind, {})):
            if key in metrics.get(kind, {}) and bare(key) == short:
                return kind, key
    return None
