"""Operations of a step on JAX, by XLA's cost analysis of the program before it is optimized.

XLA counts the body of a loop once, so a scan of known length is counted again from its body. A loop of unknown length
and a call of something that is not XLA's (a hand-written kernel) make the number unknown.
"""

import re
from collections.abc import Iterator
from typing import Any

import jax

from everstep.data import nest
from everstep.engine.feed import on_host
from everstep.task.task import unpack
from everstep.types import Batch

# What is not XLA's, and costs next to nothing: random numbers, placement.
_FREE_CALLS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
_RANDOM = "threefry"


def train_step(engine: Any, batch: Batch | None) -> float | None:
    """Returns the operations of a training step; looks at the program that was traced for single steps."""
    if batch is None:
        return None
    block = nest.map_leaves(lambda leaf: _abstract(leaf, (1,)), batch)
    before = engine.compilations
    try:
        return _operations(engine._train_many.trace(engine._values, block))
    finally:
        engine.compilations = before


def inference_step(engine: Any, batch: Batch) -> float | None:
    """Returns the operations of the inference step; traces it."""
    step = engine._pure(lambda features: engine.task.inference_step(engine.composed(features), engine.model))
    features = nest.map_leaves(_abstract, unpack(batch)[0])
    return _operations(jax.jit(step).trace(engine._values, features))


def device_kind() -> str:
    """Returns the kind of device that computes."""
    return str(jax.devices()[0].device_kind)


def _abstract(leaf: Any, before: tuple[int, ...] = ()) -> jax.ShapeDtypeStruct:
    array = on_host(leaf)
    return jax.ShapeDtypeStruct((*before, *array.shape), jax.dtypes.canonicalize_dtype(array.dtype))


def _operations(traced: Any) -> float | None:
    """Returns the operations of a traced function, every scan as often as it runs."""
    total = _counted_once(traced)
    for scan, certain in _loops(traced.jaxpr.jaxpr):
        if scan.primitive.name != "scan" or not certain:
            return None
        body = jax.jit(jax.extend.core.jaxpr_as_fun(scan.params["jaxpr"])).trace(*_arguments(scan.params["jaxpr"]))
        once, all_of_it = _counted_once(body), _operations(body)
        if total is None or once is None or all_of_it is None:
            return None
        total += scan.params["length"] * all_of_it - once
    return total


def _counted_once(traced: Any) -> float | None:
    lowered = _lowered(traced)
    calls = set(re.findall(r"custom_call @\"?([\w$]+)", lowered.as_text()))
    if any(name not in _FREE_CALLS and _RANDOM not in name for name in calls):
        return None
    flops = (lowered.cost_analysis() or {}).get("flops")
    return None if flops is None else float(flops)


def _lowered(traced: Any) -> Any:
    """Returns the program as the host would run it: the compilers of other devices do not say what one costs."""
    if jax.default_backend() == "cpu":
        return traced.lower()
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.jit(jax.extend.core.jaxpr_as_fun(traced.jaxpr)).lower(*_arguments(traced.jaxpr))


def _arguments(closed: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]


def _loops(jaxpr: Any, certain: bool = True) -> Iterator[tuple[Any, bool]]:
    """Yields the loops of a program, not those inside them, and whether each is certain to run."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("scan", "while"):
            yield equation, certain
            continue
        for inner in _inner(equation):
            yield from _loops(inner, certain and equation.primitive.name != "cond")


def _inner(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for item in value if isinstance(value, list | tuple) else (value,):
            if hasattr(item, "jaxpr"):
                yield item.jaxpr
            elif hasattr(item, "eqns"):
                yield item
