"""`logs/`: what Keras's TensorBoard callback would write, each epoch once over all attempts.

An epoch is written when its checkpoint is there, so no later attempt trains it again, and steps only ever increase.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

from everstep.training.event_file import EventFile, last_step

_KINDS = ("train", "validation")
_BINS = 30

Histograms = Mapping[str, Any]
"""By the name of a weight, its distribution as TensorBoard has it."""


class EpochLog:
    """TensorBoard events by epoch, in `logs/train` and `logs/validation`: `epoch_loss`, and the weights' histograms.

    Args:
      directory: `logs`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = {kind: EventFile(directory / kind) for kind in _KINDS}
        self._done = {kind: last_step(directory / kind) for kind in _KINDS}

    def write(self, epoch: int, numbers: Mapping[str, float], histograms: Histograms) -> None:
        """Writes an epoch, unless it is there."""
        train, validation = _parted(numbers)
        self._write("train", epoch, [*_scalars(train), *_spelled(histograms)])
        if validation:
            self._write("validation", epoch, [*_scalars(validation)])

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()

    def _write(self, kind: str, epoch: int, values: list[Any]) -> None:
        if epoch <= self._done[kind]:
            return
        self._files[kind].write(epoch, values)
        self._done[kind] = epoch


def histograms(model: keras.Model) -> dict[str, Any]:
    """Returns the distribution of each weight of a model."""
    found: dict[str, Any] = {}
    for layer in model._flatten_layers(include_self=False, recursive=True):
        for weight in layer._trainable_variables + layer._non_trainable_variables:
            values = np.asarray(keras.ops.convert_to_numpy(weight.value), np.float64).ravel()
            if values.size and np.isfinite(values).all():
                found[f"{layer.name}/{weight.name}/histogram"] = _histogram(values)
    return found


def _histogram(values: np.ndarray) -> Any:
    counts, edges = np.histogram(values, _BINS)
    return HistogramProto(
        min=values.min(),
        max=values.max(),
        num=values.size,
        sum=values.sum(),
        sum_squares=values @ values,
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )


def _parted(numbers: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    validation = {name.removeprefix("val_"): value for name, value in numbers.items() if name.startswith("val_")}
    return {name: value for name, value in numbers.items() if not name.startswith("val_")}, validation


def _scalars(numbers: Mapping[str, float]) -> Iterator[Any]:
    return (Summary.Value(tag=f"epoch_{name}", simple_value=value) for name, value in numbers.items())


def _spelled(found: Histograms) -> Iterator[Any]:
    return (Summary.Value(tag=name, histo=value) for name, value in found.items())
