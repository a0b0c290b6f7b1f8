"""The plain arguments of `model.fit`: what each may be, and what is wrong with one that cannot be used."""

import dataclasses
import math
import numbers
import warnings
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError, nearest

_OLD = {
    "data": "it is called x, and the labels may go in as y",
    "max_queue_size": "set it on the data: keras.utils.PyDataset(max_queue_size=…)",
    "nb_epoch": "it is called epochs",
    "use_multiprocessing": "set it on the data: keras.utils.PyDataset(use_multiprocessing=…)",
    "workers": "set it on the data: keras.utils.PyDataset(workers=…)",
}
"""Names that `fit` had once, in Keras or here, and what to write now."""


def refuse_unknown(given: Mapping[str, Any], known: list[str]) -> None:
    """Refuses keywords that `fit` does not have.

    Raises:
      UsageError: There is one; names it, and says what to write instead.
    """
    for name in given:
        raise UsageError("fit() has no such argument", key=name, remedy=_OLD.get(name) or nearest(name, known))


def whole(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number as Python's.

    Raises:
      UsageError: It is none, or too small.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise UsageError(f"expected a whole number, not a {type(value).__name__}", key=name, received=value)
    if value < least:
        raise UsageError(f"must be at least {least}", key=name, received=int(value))
    return int(value)


@dataclasses.dataclass(frozen=True)
class Counts:
    """How much there is of everything; None where the data decides.

    Raises:
      UsageError: One of them cannot be used; names it.
    """

    batch_size: int | None
    epochs: int
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    steps_per_execution: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, needed = getattr(self, field.name), field.name in ("epochs", "initial_epoch")
            if value is not None or needed:
                least = 0 if field.name == "initial_epoch" else 1
                object.__setattr__(self, field.name, whole(field.name, value, least))

    @property
    def epoch_steps(self) -> int | None:
        """Returns the steps of an epoch: Keras runs `steps_per_execution` of them at a time, the last ones too."""
        return _rounded_up(self.steps_per_epoch, self.steps_per_execution)

    @property
    def evaluation_steps(self) -> int | None:
        """Returns the same for an evaluation."""
        return _rounded_up(self.validation_steps, self.steps_per_execution)

    def limited(self, epochs: int | None, steps: int | None) -> "Counts":
        """Returns no more of them than `keras.config.set_max_epochs` and `set_max_steps_per_epoch` allow."""
        limits = {"epochs": epochs, "steps_per_epoch": steps, "validation_steps": steps}
        lower = {
            k: most for k, most in limits.items() if most and (getattr(self, k) is None or most < getattr(self, k))
        }
        for name, most in lower.items():
            if name != "validation_steps":
                warnings.warn(f"Limiting {name} to {most}", stacklevel=3)
        return dataclasses.replace(self, **lower)

    def size(self, samples: int | None) -> int:
        """Returns how many samples are in a batch, of so many where they are arrays; as Keras decides it."""
        return self.batch_size or _divided(samples, self.steps_per_epoch)

    def validation_size(self, samples: int | None) -> int:
        """Returns the same for an evaluation."""
        return self.validation_batch_size or self.batch_size or _divided(samples, self.validation_steps)


def _rounded_up(steps: int | None, multiple: int) -> int | None:
    return None if steps is None else -(-steps // multiple) * multiple


def _divided(samples: int | None, steps: int | None) -> int:
    return -(-samples // steps) if samples and steps else 32


def shuffling(shuffle: Any) -> bool:
    """Returns whether to shuffle.

    Raises:
      UsageError: It is not a bool.
    """
    if not isinstance(shuffle, bool):
        raise UsageError("expected True or False", key="shuffle", received=shuffle)
    return shuffle


def class_weights(class_weight: Any) -> dict[int, float] | None:
    """Returns the weights by class.

    Raises:
      UsageError: They are not numbers by the number of a class.
    """
    if class_weight is None:
        return None
    wanted = "expected a dict such as {0: 1.0, 1: 5.0}"
    try:
        weights = {int(label): float(weight) for label, weight in class_weight.items()}
    except (AttributeError, TypeError, ValueError):
        raise UsageError(wanted, key="class_weight", received=class_weight) from None
    if not weights or min(weights) < 0:
        raise UsageError(f"{wanted}, with classes from 0 on", key="class_weight", received=class_weight)
    if not all(map(math.isfinite, weights.values())):
        raise UsageError(f"{wanted}, with finite weights", key="class_weight", received=class_weight)
    return weights
