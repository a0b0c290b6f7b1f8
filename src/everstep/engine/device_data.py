"""Data on the device: arrays that fit live there, and the compiled loop gathers each batch from them.

The host then sends only the numbers of the rows (`ArrayStream.row_numbers`): the order and the positions are those of
batches that the host gathers. So are the bits, but for programs that XLA makes for a GPU: there a run keeps the place
of its data when it resumes. Arrays keep their types: bytes stay bytes until the step casts them.

Where a step takes longer than the copy of its batch, `auto` leaves the data on the host: nothing would be gained, and
the memory of the device is for the model.

`place_data` decides, as `cache` in the data section requests it; `Engine.place_on_device` places the arrays.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from everstep.data import ArrayStream, Block, Stream, nest
from everstep.engine import device_names as devices
from everstep.errors import UsageError

SHARE = 0.25
"""The share of the free device memory that `cache: auto` uses for all data together."""


class PlacedRows(NamedTuple):
    """Several batches on the device, as rows of arrays that live there.

    Attributes:
      arrays: The arrays, in the nesting of a batch.
      rows: The numbers of their rows: batches along the first axis, samples along the second.
    """

    arrays: Any
    rows: Any


class ResidentData(NamedTuple):
    """Data that lives on the device.

    Attributes:
      stream: The stream that it is from.
      rows: The stream of the numbers of its rows, which the host reads.
      arrays: Its arrays, on the device.
    """

    stream: ArrayStream
    rows: ArrayStream
    arrays: Any

    def place(self, place: Callable[[Block], Any], block: Block) -> PlacedRows:
        """Places a block of `rows` with a function, and returns it with the arrays."""
        return PlacedRows(self.arrays, place(block))


def place_data(engine: Any, streams: Mapping[str, tuple[Stream | None, Any]]) -> dict[str, int]:
    """Places the data on the device that is requested to live there, or, with `auto`, fits.

    Args:
      engine: The engine, built, so that the memory of the state is in use.
      streams: For `train` and `validation`: the stream, None for none, and the value of `cache`.

    Returns:
      The bytes on the device, by kind of data; what is not listed stays on the host.

    Raises:
      UsageError: `cache` is `device`, but the data cannot live there; the key names the section.
    """
    placed: dict[str, int] = {}
    budget: float | None = None
    for kind, (stream, cache) in streams.items():
        if stream is None or cache not in ("auto", "device"):
            continue
        reason = why_not(stream) or engine.why_not_on_device(stream)
        if cache == "device":
            _require_room(kind, stream, reason)
        else:
            if budget is None:
                budget = SHARE * (devices.free_bytes() or 0) if devices.has_gpu() else 0.0
            fits = not reason and device_bytes(stream) <= budget and engine.has_programs_for(kind, stream)
            if not engine.keeps_placement(kind, fits, fits and not engine.hides_copies(kind)):
                continue
            budget -= device_bytes(stream)
        engine.place_on_device(kind, stream)
        placed[kind] = device_bytes(stream)
    return placed


def why_not(stream: Any) -> str:
    """Returns why the data of a stream cannot live on the device; empty if it can."""
    if type(stream) is not ArrayStream:
        return f"only arrays can live on the device, and this data comes from {type(stream).__name__}"
    for path, leaf in nest.walk(stream.arrays):
        if leaf.dtype.kind not in "fiub" and "float" not in leaf.dtype.name:
            return f"only numbers can live on the device, and {path or 'the array'} holds {leaf.dtype}"
    return "row numbers on the device have 32 bits" if stream.num_samples >= 2**31 else ""


def device_bytes(stream: Any) -> int:
    """Returns how many bytes the arrays of a stream take on the device, where float64 becomes Keras's float type."""
    floats = np.dtype(keras.config.floatx() if keras.config.floatx() != "bfloat16" else "float16").itemsize
    return sum(
        leaf.size * (floats if leaf.dtype == np.float64 else leaf.itemsize) for leaf in nest.flatten(stream.arrays)
    )


def _require_room(kind: str, stream: Stream, reason: str) -> None:
    """Refuses data that was requested to live on the device, but cannot, or does not fit."""
    if not reason:
        needed, free = device_bytes(stream), devices.free_bytes()
        if free is None or needed <= free:
            return
        reason = f"the arrays take {needed:,} bytes, and {free:,} bytes of device memory are free"
    raise UsageError(
        reason,
        key=f"task.{'train' if kind == 'train' else 'validation'}_data.cache",
        received="device",
        remedy="set it to auto or host",
    )
