"""Keras variables that are created in parts: no device ever holds the whole of a large one.

Keras would create a variable on one device and distribute it from there. Here the initializer is compiled with the
sharding of its result, so that each device computes its own part. The random numbers do not depend on the sharding.
Every variable gets its sharding as Keras's `layout`: values that are assigned to it later are placed in the same way.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import keras
from jax.sharding import NamedSharding
from keras.src.random.seed_generator import draw_seed

from everstep.engine.probe import replaced

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
    initialize = keras.Variable._initialize

    def initialize_with(self: keras.Variable, value: Any) -> None:
        self._layout = sharding_of(value.shape)
        initialize(self, value)

    def initialize_by(self: keras.Variable, initializer: Callable[..., Any]) -> None:
        value = _in_parts(initializer, tuple(self.shape), self._dtype, sharding_of(self.shape))
        if value is None:
            value = self._convert_to_tensor(initializer(self.shape, dtype=self._dtype), dtype=self._dtype)
        initialize_with(self, value)

    with replaced("_initialize_with_initializer", initialize_by), replaced("_initialize", initialize_with):
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
