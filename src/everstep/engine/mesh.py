"""`DeviceMesh`: the devices that train one model together on JAX, and what each of them holds.

The devices are arranged along named axes. The axis `data` shares each batch; what the devices hold of each variable
follows from a `ShardingPlan`. The compiled step stays the same program over the whole batch and the whole state: XLA
partitions it and adds the communication. So nothing is scaled by the number of devices, and BatchNorm sees the whole
batch.
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from everstep.data import OwnRows
from everstep.engine.sharded_init import created_in_parts, of_all_processes
from everstep.engine.sharding import DATA, Axes, Sharding, ShardingPlan, Spec, check_batch, check_size
from everstep.engine.workers import Workers
from everstep.errors import warning_text

logger = logging.getLogger(__name__)


class SingleDevice(Workers):
    """One device in place of a `DeviceMesh`: nothing is shared, and arrays are where JAX puts them."""

    is_one_device = True
    divides_variables = False
    spans_processes = False

    def describe(self) -> dict[str, Any]:
        """Returns nothing for the run's record."""
        return {}

    def shardings(self, variables: Mapping[str, keras.Variable]) -> dict[str, NamedSharding]:
        """Returns nothing: no variable has parts."""
        return {}

    def output_shardings(self, state: Sequence[NamedSharding], others: int) -> dict[str, Any]:
        """Returns no arguments for `jax.jit`."""
        return {}

    def place_state(self, state: list[Any]) -> list[Any]:
        """Returns the state with values of the host, such as a window that was just opened, on the device."""
        placed: list[Any] = jax.device_put(state)
        return placed

    def put(self, value: Any, sharding: NamedSharding) -> jax.Array:
        """Returns an array on the device."""
        return jax.device_put(value, sharding)

    def copy_to_all(self, value: Any) -> Any:
        """Returns the value as it is."""
        return value

    def copy_to_first(self, value: Any) -> Any:
        """Returns the value as it is."""
        return value

    def own_copy(self, value: Any) -> Any:
        """Returns the value as it is."""
        return value

    def share(self, data: Any, batch_size: int | None = None) -> Any:
        """Places stacked batches on the device."""
        return jax.device_put(data)

    def replicate(self, arrays: Any) -> Any:
        """Places whole arrays on the device."""
        return jax.device_put(arrays)

    def share_traced(self, batch: Any) -> Any:
        """Returns the batch as it is."""
        return batch


class DeviceMesh(Workers):
    """Devices that train as one; the counterpart of a `tf.distribute` strategy.

        with DeviceMesh(jax.devices()).scope():
            ...  # engines built here use all of them

        with DeviceMesh(jax.devices(), {"data": 2, "model": 4}, "fsdp").scope():
            ...  # variables that are created here are divided over the devices at once

    Args:
      devices: The devices.
      axes: How many of them each axis has; by default all share each batch.
      sharding: How variables are divided; see `ShardingPlan`.
      even_batches: Whether a training batch that the axis `data` does not divide is an error, not only a warning.

    Raises:
      UsageError: The product of the axes is not the number of devices.
    """

    def __init__(
        self,
        devices: Sequence[Any],
        axes: Axes | None = None,
        sharding: Sharding = "replicated",
        even_batches: bool = False,
    ) -> None:
        self.devices = list(devices)
        self.axes = dict(axes or {DATA: len(self.devices)})
        self.count = self.axes[DATA]
        check_size(self.axes, len(self.devices))
        self.plan = ShardingPlan(self.axes, sharding)
        self._mesh = Mesh(self._arranged(), tuple(self.axes))
        self.everywhere = self._sharding(())
        self._in_parts = self._sharding((None, DATA))
        own = [device for device in self.devices if device.process_index == jax.process_index()]
        self._first = own[0]  # of this process
        self._even_batches = even_batches
        self._uneven_in_a_row = 0  # batches; a single one is the rest of an epoch
        self._has_warned = False

    def _arranged(self) -> np.ndarray:
        """Returns the devices along the axes, neighbours close to each other where that matters (TPUs)."""
        sizes = tuple(self.axes.values())
        if len(sizes) == 1:
            return np.array(self.devices)
        return mesh_utils.create_device_mesh(sizes, self.devices)

    def _sharding(self, spec: Spec) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*spec))

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of parts that a batch is shared in."""
        return self.axes[DATA]

    is_one_device = False

    @property
    def divides_variables(self) -> bool:
        """Whether some variables are divided, so that Keras objects hold arrays of all devices."""
        return not self.plan.is_replicated

    def describe(self) -> dict[str, Any]:
        """Returns axes and sharding, for the run's record; empty if the devices only share batches."""
        if list(self.axes) == [DATA] and self.plan.is_replicated:
            return {}
        layout = self.plan.sharding
        return {"mesh": dict(self.axes), "sharding": layout if isinstance(layout, str) else dict(layout)}

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Makes engines that are built inside the block use the devices, and divides new variables among them."""
        with contextlib.ExitStack() as stack:
            if self.divides_variables:
                stack.enter_context(created_in_parts(lambda shape: self._sharding(self.plan.spec_for_new(shape))))
            _active.append(self)
            stack.callback(_active.pop)
            yield

    # -- variables ---------------------------------------------------------------------------------------------------

    def shardings(self, variables: Mapping[str, keras.Variable]) -> dict[str, NamedSharding]:
        """Returns where the parts of each variable are.

        Raises:
          UsageError: The layout does not fit the variables.
        """
        shapes = {key: tuple(variable.shape) for key, variable in variables.items()}
        return {key: self._sharding(spec) for key, spec in self.plan.specs(shapes).items()}

    def output_shardings(self, state: Sequence[NamedSharding], others: int) -> dict[str, Any]:
        """Returns arguments of `jax.jit` for a function that returns the state and others, which are replicated."""
        return {"out_shardings": (list(state), *[self.everywhere] * others)}

    def place_state(self, state: list[Any]) -> list[Any]:
        """Returns the state with values of the host, such as a window that was just opened, on all devices."""
        return [value if isinstance(value, jax.Array) else self.copy_to_all(value) for value in state]

    def put(self, value: Any, sharding: NamedSharding) -> jax.Array:
        """Returns an array on the devices; every process has the whole value, and places the parts of its devices."""
        return jax.device_put(of_all_processes(value, sharding), sharding)

    def copy_to_all(self, value: Any) -> jax.Array:
        """Returns a copy of an array that is replicated on every device."""
        return self.put(value, self.everywhere)

    def copy_to_first(self, value: Any) -> jax.Array:
        """Returns a copy of an array on the first device of this process, for code that is not aware of the mesh."""
        return jax.device_put(self.own_copy(value), self._first)

    def own_copy(self, value: Any) -> Any:
        """Returns a replicated array as this process holds it; one that it holds alone is returned as it is."""
        return value if not isinstance(value, jax.Array) or value.is_fully_addressable else value.addressable_data(0)

    @property
    def spans_processes(self) -> bool:
        """Whether some of the devices belong to other processes."""
        return not self.everywhere.is_fully_addressable

    # -- batches -----------------------------------------------------------------------------------------------------

    def check_batch(self, size: int) -> None:
        """Refuses training batches that cannot be shared evenly, where that is required.

        Raises:
          UsageError: The axis `data` does not divide the size.
        """
        if self._even_batches:
            check_batch(size, self.axes)

    @property
    def own_rows(self) -> OwnRows | None:
        """Which rows of a batch the devices of this process need; None if all."""
        return self._rows if self.spans_processes else None

    def _rows(self, samples: int) -> slice:
        """Returns which rows of a batch of so many samples the devices of this process need."""
        if samples % self.num_replicas_in_sync:
            return slice(0, samples)
        parts = [rows for _, rows in self._in_parts.addressable_devices_indices_map((1, samples)).values()]
        return slice(min(rows.start or 0 for rows in parts), max(rows.stop or samples for rows in parts))

    def share(self, data: Any, batch_size: int | None = None) -> Any:
        """Places stacked batches on the devices, an equal part of each batch along the axis `data`.

        A batch that cannot be divided evenly, such as the last one of an evaluation, is replicated on all of them. If
        several batches in a row cannot, more devices bring no speed-up, and a warning is logged once.

        Args:
          data: The batches; each array has batches along its first axis, samples along the second.
          batch_size: The samples of a whole batch, if the data has only the `own_rows` of this process.
        """
        leaves = [leaf for leaf in jax.tree.leaves(data) if leaf.ndim > 1]
        self._count_uneven([leaf for leaf in leaves if not self._is_even(batch_size or leaf.shape[1])])
        if batch_size is None or not self._is_even(batch_size):
            return jax.tree.map(self._share_leaf, data)
        return jax.tree.map(lambda leaf: self._join_rows(leaf, batch_size), data)

    def _is_even(self, samples: int) -> bool:
        return samples % self.num_replicas_in_sync == 0

    def _share_leaf(self, leaf: Any) -> jax.Array:
        is_divided = leaf.ndim > 1 and self._is_even(leaf.shape[1])
        return self.put(leaf, self._in_parts if is_divided else self.everywhere)

    def _join_rows(self, leaf: Any, batch_size: int) -> jax.Array:
        """Returns the array of whole batches; every process has its own rows, and places them on its devices."""
        first = self._rows(batch_size).start

        def rows(part: tuple[slice, ...]) -> Any:
            samples = part[1]
            return leaf[:, (samples.start or 0) - first : (samples.stop or batch_size) - first]

        return jax.make_array_from_callback((len(leaf), batch_size, *leaf.shape[2:]), self._in_parts, rows)

    def replicate(self, arrays: Any) -> Any:
        """Places whole arrays on every device."""
        return jax.tree.map(self.copy_to_all, arrays)

    def share_traced(self, batch: Any) -> Any:
        """Inside a compiled function: leaves an equal part of a batch along `data`, if it can be divided."""
        parts = self._sharding((DATA,))

        def shared(leaf: Any) -> Any:
            is_divided = leaf.shape[0] % self.num_replicas_in_sync == 0
            return jax.lax.with_sharding_constraint(leaf, parts) if is_divided else leaf

        return jax.tree.map(shared, batch)

    def _count_uneven(self, uneven: list[Any]) -> None:
        self._uneven_in_a_row = self._uneven_in_a_row + uneven[0].shape[0] if uneven else 0
        if self._uneven_in_a_row > 1 and not self._has_warned:
            self._has_warned = True
            devices = self.num_replicas_in_sync
            text = warning_text(
                f"batches of {uneven[0].shape[1]} samples cannot be shared evenly by {devices} devices, so each device "
                "computes the whole batch",
                remedy=(f"set {{batch}}, also of the validation data, to a multiple of {devices}",),
                mentions={"batch": "task.train_data.global_batch_size"},
            )
            logger.warning("%s", text)


def is_divided(sharding: NamedSharding, shape: Sequence[int]) -> bool:
    """Whether no device holds the whole of an array."""
    return math.prod(sharding.shard_shape(tuple(shape))) < math.prod(shape)


_active: list[DeviceMesh] = []


def current_mesh() -> DeviceMesh | None:
    """Returns the mesh whose scope is active; None for one device."""
    return _active[-1] if _active else None
