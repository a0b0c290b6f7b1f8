"""What several processes compute together on TensorFlow: the collectives of `MultiWorkerMirroredStrategy`.

Only its collectives are used, not its scope: variables are ordinary ones, and every step leaves the same values in them
on all processes. The variables of the strategy would not do. It keeps one part of a metric per process and adds them up
when they are read, which is wrong for a minimum, and a saved sum is divided equally when it is restored, so that a
resumed run would round differently.
"""

import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from everstep.engine.processes import Processes, seed_offset
from everstep.errors import UsageError
from everstep.gang import Gang, current_gang, find_coordinates
from everstep.keras_internals import tensorflow_random as keras_random

_strategies: list[Any] = []  # of this process: TensorFlow can be configured once


logger = logging.getLogger(__name__)


def joined() -> "TensorFlowProcesses | None":
    """Returns the processes that this one trains with, connected to each other; None if it is alone.

    Raises:
      UsageError: TensorFlow has computed something before, and cannot be configured any more.
    """
    gang = current_gang()
    if gang.size == 1:
        return None
    if not _strategies:
        _strategies.append(_connected(gang))
    return TensorFlowProcesses(gang.rank, gang.size, _strategies[0])


def _connected(gang: Gang) -> Any:
    """Connects the processes, each with one GPU of its machine, or with the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        here = [member.rank for member in gang.members if member.host == gang.members[gang.rank].host]
        _configure(lambda: tf.config.set_visible_devices(gpus[here.index(gang.rank) % len(gpus)], "GPU"))
    coordinates = find_coordinates()
    is_local = coordinates is not None and coordinates.is_local
    host = "127.0.0.1" if is_local else gang.members[gang.rank].host
    with socket.create_server(("127.0.0.1" if is_local else "", 0)) as free:
        port = free.getsockname()[1]
    workers = gang.gather("the address of each process for TensorFlow", f"{host}:{port}")
    if gang.is_first:
        logger.warning(
            "TensorFlow's servers, one in each process, listen on all network interfaces and authenticate nobody: "
            "train on a private network or behind a firewall"
        )
    cluster = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": gang.rank}}
    before = os.environ.get("TF_CONFIG")
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    try:
        return _configure(tf.distribute.MultiWorkerMirroredStrategy)
    finally:
        del os.environ["TF_CONFIG"]
        if before is not None:
            os.environ["TF_CONFIG"] = before


def _configure(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except RuntimeError as error:
        raise UsageError(
            f"TensorFlow has computed something before this process joined the others: {error}",
            remedy="start with `everstep train`, or create TensorFlow's objects inside the task only",
        ) from error


class TensorFlowProcesses(Processes):
    """The processes of a run on TensorFlow; see `Processes`.

    Args:
      rank: The number of this process.
      size: The number of processes.
      strategy: The strategy whose collectives are used.
    """

    def __init__(self, rank: int, size: int, strategy: Any) -> None:
        super().__init__(rank, size)
        self._strategy = strategy

    def sum(self, tensors: list[Any]) -> list[Any]:
        """Returns the sums over all processes, computed in one flat buffer for each type."""
        results: dict[int, Any] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            chosen = {index: tensor for index, tensor in enumerate(tensors) if tensor.dtype == dtype}
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in chosen.values()], 0)
            parts = tf.split(self._sum(flat), [tensor.shape.num_elements() for tensor in chosen.values()])
            for (index, tensor), part in zip(chosen.items(), parts, strict=True):
                results[index] = tf.reshape(part, tensor.shape)
        return [results[index] for index in range(len(tensors))]

    def _sum(self, flat: Any) -> Any:
        def add(part: Any) -> Any:
            return self._together(lambda context, own: context.all_reduce(tf.distribute.ReduceOp.SUM, own), part)

        return tf.custom_gradient(lambda part: (add(part), add))(flat)

    def first(self, tensors: list[Any]) -> list[Any]:
        """Returns the tensors of the first process: the others add zeros, to bits where zeros have a sign."""
        as_numbers = [
            tf.bitcast(tensor, _BITS[tensor.dtype]) if tensor.dtype in _BITS else tf.cast(tensor, tf.int64)
            for tensor in tensors
        ]
        summed = self.sum([number if self.rank == 0 else tf.zeros_like(number) for number in as_numbers])
        return [
            tf.bitcast(number, tensor.dtype) if tensor.dtype in _BITS else tf.cast(number, tensor.dtype)
            for number, tensor in zip(summed, tensors, strict=True)
        ]

    def gather(self, tensor: Any) -> list[Any]:
        """Returns the tensor of each process."""
        return tf.unstack(self.join(tf.expand_dims(tensor, 0)), num=self.size)

    def join(self, tensor: Any) -> Any:
        """Returns the tensors of all processes, one after the other; they may differ in length."""
        return self._together(lambda context, part: context.all_gather(part, axis=0), tensor)

    def dense(self, gradient: Any) -> Any:
        """Returns a gradient as one tensor: that of an embedding consists of slices."""
        return tf.convert_to_tensor(gradient)

    def rows(self, tensor: Any, part: slice) -> Any:
        """Returns some rows of a tensor, which may be sparse or ragged."""
        if not isinstance(tensor, tf.SparseTensor):
            return tensor[part]
        rest = [0] * (len(tensor.shape) - 1)
        return tf.sparse.slice(tensor, [part.start, *rest], [part.stop - part.start, *tensor.shape[1:]])

    def own_draws(self) -> contextlib.AbstractContextManager[None]:
        """Makes random layers draw other numbers in each process inside the block."""
        return _other_draws()

    def _together(self, operation: Callable[..., Any], *tensors: Any) -> Any:
        def run(*tensors: Any) -> Any:
            # Copies, since what was computed elsewhere has no device yet, and the collectives need to know it.
            return operation(tf.distribute.get_replica_context(), *(tf.identity(tensor) for tensor in tensors))

        def run_together(*tensors: Any) -> Any:
            with self._strategy.scope():
                return self._strategy.run(run, args=tensors)

        eagerly = tf.executing_eagerly()  # not in a step: compiled, which TensorFlow recommends loudly
        return (tf.function(run_together, autograph=False) if eagerly else run_together)(*tensors)


_BITS = {tf.float32: tf.int32, tf.float64: tf.int64, tf.float16: tf.float16, tf.bfloat16: tf.bfloat16}
"""The types of floating-point numbers, and those in which collectives can add them."""


@contextlib.contextmanager
def _other_draws() -> Iterator[None]:
    original = keras_random.draw_seed

    def draw_seed(seed: Any) -> Any:
        drawn, offset = original(seed), seed_offset()
        return drawn + tf.constant([offset, 0], drawn.dtype) if offset else drawn

    keras_random.draw_seed = draw_seed
    try:
        yield
    finally:
        keras_random.draw_seed = original
