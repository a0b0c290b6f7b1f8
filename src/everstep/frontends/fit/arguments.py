"""The arguments of `fit` that say nothing about its data: checked and refused before anything is read or built."""

import dataclasses
import math
import numbers
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from everstep.checkpoint.remote import is_url
from everstep.errors import UsageError, nearest
from everstep.export import chosen_formats

_OLD = {
    "data": "it is called x, and the labels may go in as y",
    "max_queue_size": "set it on the data: keras.utils.PyDataset(max_queue_size=…)",
    "nb_epoch": "it is called epochs",
    "use_multiprocessing": "set it on the data: keras.utils.PyDataset(use_multiprocessing=…)",
    "workers": "set it on the data: keras.utils.PyDataset(workers=…)",
}
"""Former names of arguments, in Keras or here, and what to write now."""


def require_place(model_dir: Any) -> None:
    """Refuses what is no directory for a run.

    Raises:
      UsageError: It is no path, or a directory of several runs, which a run in it would hide.
    """
    if not model_dir or is_url(model_dir):
        return
    if not isinstance(model_dir, str | os.PathLike):
        reason = f"expected a path, not a {type(model_dir).__name__}"
        raise UsageError(reason, key="model_dir", received=model_dir)
    place = Path(model_dir)
    if not (place / "run.json").exists() and (found := sorted(place.glob("*/run.json"))):
        raise UsageError(
            f"holds other runs, such as {found[0].parent.name!r}, which a run in it would hide",
            key="model_dir",
            received=str(place),
            remedy=f"name a new directory in it, such as {str(place / 'mine')!r}",
        )


def refuse_without_directory(**given: Any) -> None:
    """Refuses arguments that say something about a run that is kept, in a call that keeps none.

    Raises:
      UsageError: There is one.
    """
    for name, value in given.items():
        if value is not None:
            raise UsageError("there is no run directory", key=name, received=value, remedy="pass model_dir=…")


def refuse_unknown(given: Mapping[str, Any], known: list[str]) -> None:
    """Refuses keywords that `fit` does not have.

    Raises:
      UsageError: There is one; names it, and what to write instead.
    """
    for name in given:
        raise UsageError("fit() has no such argument", key=name, remedy=_OLD.get(name) or nearest(name, known))


def whole(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number as Python's.

    Raises:
      UsageError: It is no whole number, or too small.
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise UsageError(f"expected a whole number, not a {type(value).__name__}", key=name, received=value)
    if value < least:
        raise UsageError(f"must be at least {least}", key=name, received=int(value))
    return int(value)


@dataclasses.dataclass(frozen=True)
class Counts:
    """The arguments that are numbers; None where the data decides.

    Raises:
      UsageError: One of them is invalid; names it.
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
                least = 0 if needed else 1
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
        """Returns the numbers within the limits of `keras.config.set_max_epochs` and `set_max_steps_per_epoch`."""
        limits = {"epochs": epochs, "steps_per_epoch": steps, "validation_steps": steps}
        lower = {
            k: most for k, most in limits.items() if most and (getattr(self, k) is None or most < getattr(self, k))
        }
        for name, most in lower.items():
            if name != "validation_steps":
                warnings.warn(f"Limiting {name} to {most}", stacklevel=3)
        return dataclasses.replace(self, **lower)

    def size(self, samples: int | None, configured: int = 32) -> int:
        """Returns the batch size as Keras chooses it.

        Args:
          samples: The number of samples of arrays; None for other data.
          configured: The size where the call has none.
        """
        return self.batch_size or _divided(samples, self.steps_per_epoch) or configured

    def validation_size(self, samples: int | None) -> int:
        """Returns the same for an evaluation."""
        return self.validation_batch_size or self.batch_size or _divided(samples, self.validation_steps) or 32


def _rounded_up(steps: int | None, multiple: int) -> int | None:
    return None if steps is None else -(-steps // multiple) * multiple


def _divided(samples: int | None, steps: int | None) -> int | None:
    return -(-samples // steps) if samples and steps else None


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


def export_formats(export: Any, model: keras.Model, model_dir: Any) -> list[str]:
    """Returns the formats to export; none for a call that keeps nothing.

    Raises:
      UsageError: One of them is unknown, or not of this model or backend; or there is no directory to write it to.
    """
    formats = chosen_formats(export, model)
    if model_dir:
        return formats
    if others := [name for name in formats if name != "keras"]:
        raise UsageError(
            "there is no run directory to write it to", key="export", received=others[0], remedy="pass model_dir=…"
        )
    return []
