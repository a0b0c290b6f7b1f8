"""Several devices of a machine under JAX: the batch is shared among them, everything else is on each of them.

The compiled step stays the same program over the whole batch; XLA cuts it up and adds what the parts have to tell each
other. So nothing is scaled by the number of devices, and BatchNorm sees the whole batch.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

logger = logging.getLogger(__name__)


class DeviceMesh:
    """Devices that train as one; the counterpart of a `tf.distribute` strategy.

        with DeviceMesh(jax.devices()).scope():
            ...  # engines built here use all of them

    Args:
      devices: The devices.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self.devices = list(devices)
        self._mesh = Mesh(self.devices, ("batch",))
        self.everywhere = NamedSharding(self._mesh, PartitionSpec())
        self._in_parts = NamedSharding(self._mesh, PartitionSpec(None, "batch"))
        self._whole_in_a_row = 0  # batches; one alone is the rest of an epoch
        self._has_warned = False

    @property
    def num_replicas_in_sync(self) -> int:
        """How many devices share a batch."""
        return len(self.devices)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Engines that are built inside the block use the devices."""
        _active.append(self)
        try:
            yield
        finally:
            _active.pop()

    def share(self, block: Any) -> Any:
        """Puts stacked batches on the devices, a part of each batch on every one.

        A batch that cannot be cut into equal parts, as the last one of an evaluation, goes to all of them whole. Where
        that is the rule, nothing is gained by several devices, and a warning says so, once.
        """
        leaves = [leaf for leaf in jax.tree.leaves(block) if leaf.ndim > 1]
        self._count_whole([leaf for leaf in leaves if not self._is_even(leaf)])
        return jax.tree.map(self._share_leaf, block)

    def _is_even(self, leaf: Any) -> bool:
        return bool(leaf.shape[1] % len(self.devices) == 0)

    def _share_leaf(self, leaf: Any) -> jax.Array:
        parted = leaf.ndim > 1 and self._is_even(leaf)
        return jax.device_put(leaf, self._in_parts if parted else self.everywhere)

    def _count_whole(self, uneven: list[Any]) -> None:
        self._whole_in_a_row = self._whole_in_a_row + uneven[0].shape[0] if uneven else 0
        if self._whole_in_a_row > 1 and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "batches of %d samples cannot be shared evenly by %d devices, and each of them computes the whole: "
                "choose task.train_data.global_batch_size, and that of task.validation_data, so that %d divides it",
                uneven[0].shape[1],
                len(self.devices),
                len(self.devices),
            )

    def copy_to_all(self, value: Any) -> jax.Array:
        """Returns an array that is on every device."""
        return jax.device_put(value, self.everywhere)

    def copy_to_first(self, value: Any) -> jax.Array:
        """Returns an array as code that knows of no mesh expects it."""
        return jax.device_put(value, self.devices[0])


_active: list[DeviceMesh] = []


def current() -> DeviceMesh | None:
    """Returns the mesh in whose scope this is called; None for one device."""
    return _active[-1] if _active else None
