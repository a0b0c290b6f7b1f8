"""Copies of the state of a GPU on the host, in a few transfers instead of one for each variable (JAX).

A model has hundreds of small variables, and each transfer of one takes longer than its bytes. So a compiled call puts
small variables one after the other, and writes them and the large ones to pinned memory of the host, at ten times the
speed of other memory. Another call looks for NaN where the variables are.

These calls are compiled by a thread while the model trains: nobody waits for them. Until then `JaxBackend` copies as it
does elsewhere. The bits are the same.
"""

import concurrent.futures
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

logger = logging.getLogger(__name__)

FEW_VARIABLES, FEW_BYTES = 64, 32 << 20
"""Of fewer variables with fewer bytes, each is copied by itself: two calls would not be worth compiling."""

MOST_BYTES = 8 << 30
"""More are copied one by one: each transfer is long, and pinned memory might run out."""

SMALL = 1 << 20
"""Variables of fewer bytes travel together."""

TOGETHER = 64
"""How many of them at most: compilers take long over operations with hundreds of operands."""

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
"""The type in which numbers of so many bytes travel: NumPy has no views of JAX's bfloat16."""

_compiling = concurrent.futures.ThreadPoolExecutor(1, "everstep-copies")


class _Place(NamedTuple):
    """Where a variable is: in which of the arrays that are copied, and from which number on."""

    array: int
    begin: int


class HostCopies:
    """Copies the same variables again and again.

    Args:
      values: The variables by key, all of them on one device.
    """

    def __init__(self, values: Mapping[str, jax.Array]) -> None:
        self._likes = {key: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=v.sharding) for key, v in values.items()}
        self._groups = list(_groups(self._likes))
        self._places = {
            key: _Place(number, begin)
            for number, group in enumerate(self._groups)
            for key, begin in zip(group, _begins([self._likes[key] for key in group]), strict=True)
        }
        (sharding,) = {value.sharding for value in values.values()}
        self._host = sharding.with_memory_kind("pinned_host")
        self._copy = _CompiledLater(jax.jit(self._packed, out_shardings=self._host), then=self._reserve)
        self._are_finite = _CompiledLater(jax.jit(self._all_finite))

    @staticmethod
    def pays_off(values: Mapping[str, jax.Array]) -> bool:
        """Returns whether copying these variables is worth compiled calls, which can copy all of their types."""
        known = all(value.dtype.itemsize in _BITS and _is_number(value.dtype) for value in values.values())
        size = sum(value.nbytes for value in values.values())
        worth_it = (len(values) >= FEW_VARIABLES or size >= FEW_BYTES) and size <= MOST_BYTES
        return known and worth_it and len({value.sharding for value in values.values()}) == 1

    def prepare(self) -> None:
        """Begins to compile both calls."""
        self._copy.compiled(self._likes)
        self._are_finite.compiled(self._likes)

    def copy(self, values: Mapping[str, jax.Array]) -> dict[str, np.ndarray] | None:
        """Returns copies of the variables, views of pinned memory that must not be written to; None until compiled."""
        if (copy := self._copy.compiled(self._likes)) is None:
            return None
        try:
            copied = [np.from_dlpack(one) for one in jax.block_until_ready(copy(dict(values)))]
        except RuntimeError as error:  # too little pinned memory is no reason for a save to fail
            logger.debug("the state is copied one variable at a time: %s", error)
            self._copy.drop()
            return None
        return {key: self._part(copied, key) for key in values}

    def are_finite(self, values: Mapping[str, jax.Array]) -> bool | None:
        """Returns whether no variable holds NaN or an infinity; None until that is compiled."""
        are_finite = self._are_finite.compiled(self._likes)
        return None if are_finite is None else bool(are_finite(dict(values)))

    def _reserve(self, compiled: Any) -> None:
        """Has JAX reserve pinned memory for two copies, that of a save and of the one before: that takes a while."""
        wanted = [np.zeros(like.shape, like.dtype) for like in 2 * compiled.out_info]
        jax.block_until_ready(jax.device_put(wanted, self._host))  # JAX keeps what is freed

    def _packed(self, values: Mapping[str, jax.Array]) -> list[jax.Array]:
        return [_joined([_bits(values[key]) for key in group]) for group in self._groups]

    def _all_finite(self, values: Mapping[str, jax.Array]) -> jax.Array:
        floats = {key: value for key, value in values.items() if jnp.issubdtype(value.dtype, jnp.inexact)}
        each = [jnp.isfinite(_joined([floats[key] for key in group])).all() for group in _groups(floats, by_dtype=True)]
        return jnp.stack(each).all() if each else jnp.array(True)

    def _part(self, copied: Sequence[np.ndarray], key: str) -> np.ndarray:
        like, place = self._likes[key], self._places[key]
        part = copied[place.array][place.begin : place.begin + like.size]
        return part.view(bool if like.dtype == bool else like.dtype).reshape(like.shape)


class _CompiledLater:
    """A function that a thread compiles when it is first asked for.

    Args:
      function: The jitted function.
      then: Is called with what was compiled, by the thread.
    """

    def __init__(self, function: Any, then: Callable[[Any], None] = lambda compiled: None) -> None:
        self._function, self._then = function, then
        self._future: concurrent.futures.Future[Any] | None = None

    def compiled(self, likes: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
        """Returns the compiled function; None until it is, and for ever where this device cannot have it."""
        if self._future is None:
            self._future = _compiling.submit(self._compile, likes)
        return self._future.result() if self._future.done() else None

    def drop(self) -> None:
        """Uses it no more."""
        self._future = concurrent.futures.Future()
        self._future.set_result(None)

    def _compile(self, likes: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
        try:
            compiled = self._function.lower(likes).compile()
            self._then(compiled)
            return compiled
        except Exception as error:  # any of JAX's and XLA's: every other way to copy still works
            logger.debug("the state is copied one variable at a time: %s", error)
            return None


def _groups(likes: Mapping[str, Any], by_dtype: bool = False) -> Iterator[list[str]]:
    """Yields the keys of what travels together: small variables with numbers of the same size, or of the same type."""
    small: dict[Any, list[str]] = {}
    for key, like in likes.items():
        if like.size * like.dtype.itemsize < SMALL:
            small.setdefault(like.dtype if by_dtype else like.dtype.itemsize, []).append(key)
        else:
            yield [key]
    for keys in small.values():
        yield from (keys[begin : begin + TOGETHER] for begin in range(0, len(keys), TOGETHER))


def _begins(likes: Sequence[Any]) -> list[int]:
    return list(itertools.accumulate((like.size for like in likes[:-1]), initial=0))


def _is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool)


def _bits(value: jax.Array) -> jax.Array:
    return value.astype("uint8") if value.dtype == bool else jax.lax.bitcast_convert_type(value, _BITS[value.itemsize])


def _joined(values: Sequence[jax.Array]) -> jax.Array:
    return jnp.concatenate([value.reshape(-1) for value in values])
