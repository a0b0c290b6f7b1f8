"""Keras variables that are created in parts, or without a value: no device ever holds the whole of a large one.

Keras would create a variable on one device and distribute it from there. Here the initializer is compiled with the
sharding of its result, so that each device computes its own part. The random numbers do not depend on the sharding.
Every variable gets its sharding as Keras's `layout`: values that are assigned to it later are placed in the same way.

If several processes share the devices, all of them create, assign and read the variables together, with the same
values: each places the parts of its own devices, and a variable that is read as a NumPy array is gathered from all.
"""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from everstep.engine.replaced import current, replaced
from everstep.keras_internals import draw_seed
from everstep.types import ArrayParts

_WHOLE = (keras.initializers.Orthogonal,)
"""Their algorithms need the whole array; compiled for many devices they take many times as long."""

_PLAIN = (str, int, float, bool, type(None))
"""Settings of initializers that can be compared."""


@contextlib.contextmanager
def created_in_parts(sharding_of: Callable[[Sequence[int]], NamedSharding]) -> Iterator[None]:
    """Inside the block, variables are created as `sharding_of` returns it for their shapes.

    A variable passes through one device if it is created from an array, by a function, or by an initializer that needs
    the whole array or cannot be compiled.
    """
    initialize, assign = current(keras.Variable, "_initialize"), current(keras.Variable, "_direct_assign")

    def assign_on_all(self: keras.Variable, value: Any) -> None:
        assign(self, value if self._layout is None else of_all_processes(value, self._layout))

    def initialize_with(self: keras.Variable, value: Any) -> None:
        self._layout = sharding_of(value.shape)
        initialize(self, value)

    def initialize_by(self: keras.Variable, initializer: Callable[..., Any]) -> None:
        value = _in_parts(initializer, tuple(self.shape), self._dtype, sharding_of(self.shape))
        if value is None:
            value = self._convert_to_tensor(initializer(self.shape, dtype=self._dtype), dtype=self._dtype)
        initialize_with(self, value)

    def as_numpy(self: keras.Variable, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(on_every_host(self.value), dtype, copy=copy)

    with (
        replaced(keras.Variable, "_initialize_with_initializer", initialize_by),
        replaced(keras.Variable, "_initialize", initialize_with),
        replaced(keras.Variable, "_direct_assign", assign_on_all),
        replaced(keras.Variable, "__array__", as_numpy),
    ):
        yield


def of_all_processes(value: Any, sharding: NamedSharding) -> Any:
    """Returns a value that every process has as one array, of which each places the parts of its own devices.

    Returned as it is: a value of a compiled function, an array of all processes, and any if there is one process.
    """
    is_ready = isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True)
    if is_ready or sharding.is_fully_addressable:
        return value
    whole = np.asarray(value)
    return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])


def on_every_host(value: Any) -> np.ndarray:
    """Returns a whole array in the memory of the host; if it is divided over processes, all of them must call it."""
    if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
        value = _gathering(NamedSharding(value.sharding.mesh, PartitionSpec()))(value)
    return np.asarray(value)


def own_parts(value: jax.Array) -> np.ndarray | ArrayParts:
    """Returns the parts of an array that are on devices of this process; of equal parts, one process has one."""
    if value.is_fully_addressable or value.is_fully_replicated:
        return np.asarray(value)
    shards = [shard for shard in value.addressable_shards if shard.replica_id == 0]
    parts = [(tuple(along.start or 0 for along in shard.index), np.asarray(shard.data)) for shard in shards]
    return ArrayParts(value.shape, value.dtype, parts)


@functools.cache
def _gathering(everywhere: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda value: value, out_shardings=everywhere)


@contextlib.contextmanager
def without_values(smallest: int) -> Iterator[None]:
    """Inside the block, variables of at least so many elements that an initializer creates get no value.

    They can be used where only shapes are computed: to build a model or an optimizer, to trace a step.
    """
    initialize = current(keras.Variable, "_initialize_with_initializer")
    initialize_later = current(keras.Variable, "_deferred_initialize")

    def initialize_by(self: keras.Variable, initializer: Callable[..., Any]) -> None:
        if math.prod(self.shape) < smallest:
            initialize(self, initializer)
        else:
            self._value, self._initializer = None, initializer  # as Keras marks variables that wait for a value

    def deferred(self: keras.Variable) -> None:
        if math.prod(self.shape) < smallest:
            initialize_later(self)

    with (
        replaced(keras.Variable, "_initialize_with_initializer", initialize_by),
        replaced(keras.Variable, "_deferred_initialize", deferred),
    ):
        yield


def _in_parts(initializer: Any, shape: tuple[int, ...], dtype: str, sharding: NamedSharding) -> jax.Array | None:
    """Returns the initial value, each part computed by its device; None if it has to be computed as a whole."""
    if not any(sharding.spec) or not isinstance(initializer, keras.initializers.Initializer):
        return None
    if isinstance(initializer, _WHOLE):
        return None
    settings = initializer.get_config()
    if type(initializer).__module__.startswith("keras.") and all(isinstance(v, _PLAIN) for v in settings.values()):
        seed = getattr(initializer, "seed", None)
        return _program(_Recipe(initializer), shape, dtype, sharding)(None if seed is None else draw_seed(seed))
    try:
        return jax.jit(lambda: _without_state(initializer, shape, dtype), out_shardings=sharding)()
    except Exception:  # what is wrong with it shows when it is called as it is
        return None


def _without_state(initializer: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Calls an initializer of the user's, which must not change variables while it is compiled."""
    with keras.StatelessScope(initialize_variables=False) as scope:
        value = initializer(shape, dtype=dtype)
    if scope.state_mapping:
        raise ValueError("it draws from a seed generator")
    return value


class _Recipe:
    """An initializer without its seed: equal to others of the same class and settings."""

    def __init__(self, initializer: Any) -> None:
        self.initializer = initializer
        settings = {name: value for name, value in initializer.get_config().items() if name != "seed"}
        self._identity = type(initializer), repr(sorted(settings.items()))

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Recipe) and self._identity == other._identity


@functools.cache
def _program(recipe: _Recipe, shape: tuple[int, ...], dtype: str, sharding: NamedSharding) -> Callable[..., jax.Array]:
    """Returns a compiled initializer that takes its seed: layers of the same shape share the program."""

    def initialize(seed: Any) -> Any:
        initializer = copy.copy(recipe.initializer)
        if seed is not None:
            initializer.seed = seed
        return initializer(shape, dtype=dtype)

    return jax.jit(initialize, out_shardings=sharding)
