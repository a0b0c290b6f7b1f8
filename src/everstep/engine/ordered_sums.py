"""Operations on a GPU that add in a fixed order, in place of those that race (JAX).

Three operations add numbers with atomic instructions, in whatever order they arrive, so that a step ends with other
bits each time:

- `scatter-add`, the gradient of an embedding: rows of a batch that belong to the same entry of a table;
- `select_and_scatter_add`, the gradient of max pooling whose windows overlap;
- the gradient of cuDNN's flash attention, where more than two tiles of keys add to a query.

XLA has deterministic forms of the first two, which sort single numbers and take several times as long as the rest of a
step, and one of the third for whole programs that give up autotuning. The forms here cost about what the racing ones
cost. They are put in when a program is lowered inside of `ordered_sums()`; a program that is lowered elsewhere in the
process keeps XLA's.
"""

import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives
from jax.interpreters import mlir

logger = logging.getLogger(__name__)

EMBEDDING = "gradient of an embedding"
POOLING = "gradient of max pooling"
ATTENTION = "gradient of attention"

ROWS_PER_BLOCK = 64
KEYS_PER_CALL = 256  # two tiles of cuDNN's kernel: the sum of two numbers is the same in either order

_thread = threading.local()


@contextlib.contextmanager
def ordered_sums(platform: str = "cuda") -> Iterator[set[str]]:
    """Replaces racing operations in programs that this thread lowers inside the block.

    Args:
      platform: JAX's name of the platform to lower for.

    Yields:
      What was replaced so far: `EMBEDDING`, `POOLING`, `ATTENTION`.
    """
    _register(platform)
    before = getattr(_thread, "replaced", None)
    _thread.replaced = set()
    try:
        yield _thread.replaced
    finally:
        _thread.replaced = before


@functools.cache
def _register(platform: str) -> None:
    """Registers lowerings that use the one that was there, except inside of `ordered_sums()`."""
    _replace(platform, primitives.scatter_add_p, EMBEDDING, sum_rows, _is_sum_of_rows)
    _replace(platform, primitives.select_and_scatter_add_p, POOLING, pooling_gradient, _is_max_pooling)
    attention = _attention_gradient_primitive()
    if attention is not None:
        _replace(platform, attention, ATTENTION, attention_gradient, _has_many_keys)


def _replace(
    platform: str, primitive: Any, name: str, ordered: Callable[..., Any], applies: Callable[..., bool]
) -> None:
    """Registers a lowering of a primitive that lowers `ordered` instead, where that applies."""
    if (unchanged := _registered(platform, primitive)) is None:
        return
    lower = mlir.lower_fun(ordered, multiple_results=primitive.multiple_results)

    def rule(context: Any, *operands: Any, **params: Any) -> Any:
        replaced = getattr(_thread, "replaced", None)
        if replaced is None or not applies(context.avals_in, **params):
            return unchanged(context, *operands, **params)
        replaced.add(name)
        return lower(context, *operands, **params)

    mlir.register_lowering(primitive, rule, platform=platform)


def _registered(platform: str, primitive: Any) -> Callable[..., Any] | None:
    """Returns the lowering of a primitive that is registered.

    JAX has no public way to ask for it. Where it has moved, the result is None and nothing is replaced: the
    certification of the program decides.
    """
    try:
        from jax._src.interpreters.mlir import _lowerings, _platform_specific_lowerings

        entry = _platform_specific_lowerings.get(platform, {}).get(primitive) or _lowerings[primitive]
        rule: Callable[..., Any] = entry.rule
    except (ImportError, AttributeError, KeyError):
        logger.debug("this version of JAX does not show the lowering of %s: it is not replaced", primitive)
        return None
    return rule


# -- the gradient of an embedding ----------------------------------------------------------------------------------


def _is_sum_of_rows(inputs: Sequence[Any], *, dimension_numbers: Any, unique_indices: bool, **_: Any) -> bool:
    """Whether each update is a whole row of the operand, as in the gradient of `take` along the first axis."""
    operand, indices, updates = inputs
    batched = getattr(dimension_numbers, "operand_batching_dims", ())
    if unique_indices or batched or not jnp.issubdtype(operand.dtype, jnp.floating) or operand.ndim < 2:
        return False
    rows = (
        tuple(dimension_numbers.scatter_dims_to_operand_dims) == tuple(dimension_numbers.inserted_window_dims) == (0,)
    )
    return rows and updates.shape == (*indices.shape[:-1], *operand.shape[1:]) and updates.size > 0


def sum_rows(operand: Any, indices: Any, updates: Any, *, mode: Any = None, **_: Any) -> Any:
    """Adds rows to those of the operand that the indices name, in the order of the rows.

    The rows are sorted by index, and divided into blocks. A product with zeros and ones adds up the rows of each index
    inside a block; where an index has rows in several blocks, a scan over the blocks carries its sum. In the end each
    index has one sum, which is written without conflicts. If a row is not finite, the sum of its index is NaN.
    """
    count, width = operand.shape[0], updates.size // max(indices[..., 0].size, 1)
    indices, rows = indices.reshape(-1), updates.reshape(-1, width)
    if mode is not None and "CLIP" in str(mode).upper():
        indices = jnp.clip(indices, 0, count - 1)
    indices = jnp.where((indices < 0) | (indices >= count), count, indices).astype("int32")
    sums, places = _sums_by_index(indices, rows, count)
    total = jnp.zeros((count, width), jnp.float32 if operand.dtype.itemsize < 4 else operand.dtype)
    total = total.at[places].set(sums, mode="drop", unique_indices=True)
    return operand + total.reshape(operand.shape).astype(operand.dtype)


def _sums_by_index(indices: Any, rows: Any, count: int) -> tuple[Any, Any]:
    """Returns sums of rows with the same index, and where each belongs; places from `count` on belong nowhere."""
    size = ROWS_PER_BLOCK
    padding = -len(indices) % size
    indices = jnp.pad(indices, (0, padding), constant_values=count)
    ordered, order = lax.sort((indices, lax.iota("int32", len(indices))), num_keys=1)  # stable
    rows = jnp.pad(rows, ((0, padding), (0, 0)))[order].reshape(-1, size, rows.shape[1])
    blocks = ordered.reshape(-1, size)

    # The rows of one index in a block are a segment; `segment` numbers them.
    begins = jnp.concatenate([jnp.zeros_like(blocks[:, :1]), (blocks[:, 1:] != blocks[:, :-1]).astype("int32")], 1)
    segment = jnp.cumsum(begins, 1)
    belongs = segment[:, None, :] == lax.iota("int32", size)[None, :, None]  # block, segment, row
    finite = jnp.all(jnp.isfinite(rows), axis=2)  # zero times infinity would be a NaN in the sums of other segments
    rows = jnp.where(finite[:, :, None], rows, 0)
    exact = lax.Precision.HIGHEST if rows.dtype.itemsize >= 4 else None
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    sums = jnp.einsum("bsr,brw->bsw", belongs.astype(rows.dtype), rows, precision=exact, preferred_element_type=wide)
    broken = jnp.any(belongs & ~finite[:, None, :], axis=2)
    sums = jnp.where(broken[:, :, None], jnp.nan, sums)
    index_of = jnp.max(jnp.where(belongs, blocks[:, None, :], -1), axis=2)  # of each segment; -1 if there is none

    last = segment[:, -1]
    first_index, last_index = blocks[:, 0], blocks[:, -1]
    continues = jnp.concatenate([jnp.zeros((1,), bool), first_index[1:] == last_index[:-1]])
    ends_here = jnp.concatenate([last_index[:-1] != first_index[1:], jnp.ones((1,), bool)])
    own = jnp.take_along_axis(sums, last[:, None, None], axis=1)[:, 0]
    passes = (continues & (last == 0))[:, None]  # the whole block is a part of one index

    def joined(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        return left[0] & right[0], jnp.where(right[0], left[1] + right[1], right[1])

    carried = lax.associative_scan(joined, (passes, own))[1]
    before = jnp.concatenate([jnp.zeros_like(carried[:1]), carried[:-1]])
    sums = sums.at[:, 0].add(jnp.where(continues[:, None], before, 0), unique_indices=True)

    numbers = lax.iota("int32", size)[None]
    is_sum = (numbers < last[:, None]) | ((numbers == last[:, None]) & ends_here[:, None])
    nowhere = count + lax.iota("int32", blocks.size).reshape(blocks.shape)  # another place for each
    places = jnp.where(is_sum & (index_of < count), index_of, nowhere)
    return sums.reshape(-1, sums.shape[2]), places.reshape(-1)


# -- the gradient of max pooling -----------------------------------------------------------------------------------


def _is_max_pooling(inputs: Sequence[Any], *, window_dimensions: Any, **_: Any) -> bool:
    size = 1
    for length in window_dimensions:
        size *= length
    return size <= 128 and inputs[1].size > 0  # larger windows are rare, and would be long programs


def pooling_gradient(
    source: Any, operand: Any, *, select_prim: Any, window_dimensions: Any, window_strides: Any, padding: Any, **_: Any
) -> Any:
    """Returns what `select_and_scatter_add` returns: each number of the source goes to the largest of its window.

    For each place in the window there is one slice of the operand with the numbers that all windows have there. The
    first slice with the largest number is where the gradient goes; then the slices are added up in their order.
    """
    outputs = source.shape
    padded = lax.pad(operand, jnp.zeros((), operand.dtype), [(low, high, 0) for low, high in padding])
    places = list(itertools.product(*(range(length) for length in window_dimensions)))
    kept: Any = None
    largest: Any = None
    found: Any = None
    for number, place in enumerate(places):
        numbers = _at_place(padded, place, outputs, window_strides)
        inside = _inside(place, outputs, window_strides, padding, operand.shape)
        if largest is None:
            kept, largest = jnp.zeros(outputs, "uint8"), numbers
            found = jnp.ones(outputs, bool) if inside is None else inside
            continue
        keeps = select_prim.bind(largest, numbers) & found
        if inside is not None:
            keeps, found = keeps | ~inside, found | inside
        kept, largest = jnp.where(keeps, kept, jnp.uint8(number)), jnp.where(keeps, largest, numbers)

    total = jnp.zeros(padded.shape, source.dtype)
    zero = jnp.zeros((), source.dtype)
    for number, place in enumerate(places):
        own = jnp.where((kept == number) & found, source, zero)
        spread = [
            (start, length - start - (count - 1) * stride - 1, stride - 1)
            for start, length, count, stride in zip(place, padded.shape, outputs, window_strides, strict=True)
        ]
        total = total + lax.pad(own, zero, spread)
    starts = [max(low, 0) for low, _ in padding]
    return lax.slice(total, starts, [start + length for start, length in zip(starts, operand.shape, strict=True)])


def _at_place(padded: Any, place: Sequence[int], outputs: Sequence[int], strides: Sequence[int]) -> Any:
    """Returns the number that each window has at a place."""
    limits = [start + (count - 1) * stride + 1 for start, count, stride in zip(place, outputs, strides, strict=True)]
    return lax.slice(padded, place, limits, strides)


def _inside(place: Sequence[int], outputs: Sequence[int], strides: Any, padding: Any, shape: Sequence[int]) -> Any:
    """Returns for which windows a place is inside the operand, not in its padding; None if for all of them."""
    result = None
    for axis, ((low, high), length) in enumerate(zip(padding, shape, strict=True)):
        if low <= 0 and high <= 0:
            continue
        position = lax.broadcasted_iota("int32", outputs, axis) * strides[axis] + place[axis] - low
        own = (position >= 0) & (position < length)
        result = own if result is None else result & own
    return result


# -- the gradient of attention -------------------------------------------------------------------------------------


def _attention_gradient_primitive() -> Any:
    """Returns JAX's primitive of the gradient of cuDNN's flash attention; None where it has moved."""
    try:
        from jax._src.cudnn import fused_attention_stablehlo
    except ImportError:
        return None
    return getattr(fused_attention_stablehlo, "_dot_product_attention_bwd_p_wrapper", None)


_QUERY, _KEY, _VALUE, _BIAS, _ACTIVATION, _OUTPUT, _GRADIENT = 0, 1, 2, 3, 10, 11, 12
_CAUSAL = "CAUSAL"


def _positions_axis(layout: int) -> int:
    return 1 if layout == 0 else 2  # batch, position, head, width; or head before position


def _has_many_keys(
    inputs: Sequence[Any], *, layout: int, mask_type: Any, dropout_rate: float, variadic_args: Any, **params: Any
) -> bool:
    """Whether more than two tiles of keys add to a query, in a kind of attention that can be divided."""
    _, has_bias_gradient = variadic_args
    plain = not (has_bias_gradient or dropout_rate or params.get("sliding_window_length"))
    divisible = plain and mask_type.name in ("NO_MASK", _CAUSAL)
    return divisible and inputs[_KEY].shape[_positions_axis(layout)] > KEYS_PER_CALL


def attention_gradient(*operands: Any, layout: int, mask_type: Any, variadic_args: Any, **params: Any) -> Any:
    """Returns the gradients of queries, keys and values, from one call of cuDNN for each part of the keys.

    A call computes the part of the softmax that it needs from the logarithm of its sum, which the forward pass has
    kept. The gradients of the keys are complete, those of the queries are added up in the order of the calls.
    """
    primitive, axis = _attention_gradient_primitive(), _positions_axis(layout)
    has_bias, _ = variadic_args
    length = operands[_KEY].shape[axis]
    causal = mask_type.name == _CAUSAL
    gradient, of_keys, of_values = jnp.zeros(operands[_QUERY].shape, "float32"), [], []
    for start in range(0, length, KEYS_PER_CALL):
        stop = min(start + KEYS_PER_CALL, length)
        part = list(operands)
        cuts = [
            (_KEY, axis, start, stop),
            (_VALUE, axis, start, stop),
            *([(_BIAS, 3, start, stop)] if has_bias else []),
        ]
        if causal:  # earlier queries do not see these keys
            cuts += [(_QUERY, axis, start, None), (_OUTPUT, axis, start, None), (_GRADIENT, axis, start, None)]
            cuts += [(_ACTIVATION, 2, start, None), *([(_BIAS, 2, start, None)] if has_bias else [])]
        for number, along, begin, end in cuts:
            part[number] = lax.slice_in_dim(part[number], begin, end, axis=along)
        own, keys, values = primitive.bind(
            *part, layout=layout, mask_type=mask_type, variadic_args=variadic_args, **params
        )
        earlier = [(start if causal and number == axis else 0, 0, 0) for number in range(own.ndim)]
        gradient += lax.pad(own.astype("float32"), jnp.float32(0), earlier)
        of_keys.append(keys)
        of_values.append(values)
    joined = [lax.concatenate(parts, axis) for parts in (of_keys, of_values)]
    return [gradient.astype(operands[_QUERY].dtype), *joined]


# -- what XLA does with its option for deterministic operations ----------------------------------------------------


@contextlib.contextmanager
def deterministic_libraries(platform: str = "cuda") -> Iterator[None]:
    """Has programs that this thread lowers inside the block ask cuDNN for deterministic kernels.

    They are to be compiled with XLA's option, which alone is not enough:

    - Attention: XLA asks for the deterministic gradient, but then looks for the result under the name that the
      operation had before: the program fails when it runs (`raw_hash_map::at`). Where the operation asks from the
      beginning, its name stays.
    - Convolutions: XLA takes the kernel that another program of the process has chosen, even if it races. With another
      precision it is another operation, for which XLA takes the first deterministic kernel.
    """
    _add_requests(platform)
    _thread.deterministic = True
    try:
        yield
    finally:
        _thread.deterministic = False


@functools.cache
def _add_requests(platform: str) -> None:
    convolution = primitives.conv_general_dilated_p
    if (unchanged := _registered(platform, convolution)) is not None:

        def rule(context: Any, *operands: Any, **params: Any) -> Any:
            if getattr(_thread, "deterministic", False):
                params["precision"] = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
            return unchanged(context, *operands, **params)

        mlir.register_lowering(convolution, rule, platform=platform)
    try:
        from jax._src.cudnn import fused_attention_stablehlo as attention

        create = attention.create_dot_product_attention_backend_config_base
    except (ImportError, AttributeError):
        return

    @functools.wraps(create)
    def with_request(*args: Any, **kwargs: Any) -> Any:
        config = create(*args, **kwargs)
        is_gradient = kwargs.get("is_bwd", args[-1] if args else False)
        if getattr(_thread, "deterministic", False) and is_gradient is True:
            config["cudnn_fmha_backend_config"]["force_deterministic"] = True
        return config

    attention.create_dot_product_attention_backend_config_base = with_request
