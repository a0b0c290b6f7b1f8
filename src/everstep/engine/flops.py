"""Floating-point operations of a step, counted from the compiled program; None if they are unknown.

Nothing is compiled to count them. On JAX and TensorFlow the compiler's cost analysis reads the existing program before
optimization; if the compiler rejects a TensorFlow step, its graph is counted. On PyTorch one more step runs under
PyTorch's own counter and is undone (`TorchBackend`).
"""

import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from everstep.data import nest
from everstep.engine.engine import Engine
from everstep.types import Batch

logger = logging.getLogger(__name__)


def of_train_step(engine: Engine, batch: Batch | None) -> float | None:
    """Returns the operations of one training step, which are counted once; None if they are unknown.

    Args:
      engine: An engine that has run training steps.
      batch: A batch of the training data; None if there is none.
    """
    if batch is None:
        return None
    shapes = tuple((tuple(leaf.shape), str(leaf.dtype)) for leaf in nest.flatten(batch))
    if shapes not in engine.train_flops:
        engine.train_flops[shapes] = _or_none("the training step", lambda: engine.train_step_flops(batch))
    return engine.train_flops[shapes]


def of_inference_step(engine: Engine, batch: Batch) -> float | None:
    """Returns the operations of `task.inference_step`, which is traced on a batch; None if they are unknown."""
    return _or_none("the inference step", lambda: engine.inference_step_flops(batch))


def _or_none(what: str, count: Callable[[], float | None]) -> float | None:
    try:
        return count()
    except Exception as error:  # it is only reported: never a reason to fail
        logger.debug("%s: cost unknown: %s: %s", what, type(error).__name__, error)
        return None


# -- JAX --------------------------------------------------------------------------------------------------------------

# XLA counts the body of a loop once, so a scan of known length is counted from its body. A loop of unknown length, or a
# custom call (a hand-written kernel), makes the number unknown.

_FREE_JAX_CALLS = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}
_RANDOM = "threefry"  # random numbers cost almost nothing, as placement does


def of_jax_program(traced: Any) -> float | None:
    """Returns the operations of a traced JAX function, with every iteration of its scans."""
    return _with_and_without_iterations(traced)[0]


def _with_and_without_iterations(traced: Any) -> tuple[float | None, float | None]:
    """Returns the operations with every iteration of the scans, and with one iteration of each, as XLA counts."""
    import jax
    import jax.extend

    once = total = _counted_once(traced)
    for scan, certain in _loops(traced.jaxpr.jaxpr):
        if scan.primitive.name != "scan" or not certain:
            return None, once
        body = jax.jit(jax.extend.core.jaxpr_as_fun(scan.params["jaxpr"])).trace(*_arguments(scan.params["jaxpr"]))
        of_iteration, counted = _with_and_without_iterations(body)
        if total is None or of_iteration is None or counted is None:
            return None, once
        total += scan.params["length"] * of_iteration - counted
    return total, once


def of_products(jaxpr: Any) -> float:
    """Returns the operations of the matrix products and convolutions of a JAX program, which nothing is compiled for.

    Loops whose length the program does not know count as one iteration, and conditions as all of their branches.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        name, size = equation.primitive.name, math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            total += 2.0 * size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            weights, channels = equation.invars[1].aval.shape, equation.params["dimension_numbers"].rhs_spec[0]
            total += 2.0 * size * math.prod(weights) / weights[channels]
        times = equation.params.get("length", 1) if name == "scan" else 1
        for value in equation.params.values():
            for item in value if isinstance(value, list | tuple) else (value,):
                inner = getattr(item, "jaxpr", item)
                if hasattr(inner, "eqns"):
                    total += times * of_products(inner)
    return total


def _counted_once(traced: Any) -> float | None:
    """Returns the operations of a program compiled for the CPU: compilers of other devices do not report them."""
    import jax
    import jax.extend

    if jax.default_backend() == "cpu":
        lowered = traced.lower()
    else:
        with jax.default_device(jax.devices("cpu")[0]):
            lowered = jax.jit(jax.extend.core.jaxpr_as_fun(traced.jaxpr)).lower(*_arguments(traced.jaxpr))
    calls = set(re.findall(r"custom_call @\"?([\w$]+)", lowered.as_text()))
    if any(name not in _FREE_JAX_CALLS and _RANDOM not in name for name in calls):
        return None
    flops = (lowered.cost_analysis() or {}).get("flops")
    return None if flops is None else float(flops)


def _arguments(closed: Any) -> list[Any]:
    import jax

    return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]


def _loops(jaxpr: Any, certain: bool = True) -> Iterator[tuple[Any, bool]]:
    """Yields the outermost loops of a program, and whether each is certain to run."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("scan", "while"):
            yield equation, certain
            continue
        for value in equation.params.values():
            for item in value if isinstance(value, list | tuple) else (value,):
                if hasattr(item, "jaxpr") or hasattr(item, "eqns"):
                    inner = item.jaxpr if hasattr(item, "jaxpr") else item
                    yield from _loops(inner, certain and equation.primitive.name != "cond")


# -- TensorFlow -------------------------------------------------------------------------------------------------------

# Counted by XLA's cost analysis or, if XLA does not support the step, from its graph. Both read the function that ran.
# The graph gives slightly less, by a tenth for a transformer: XLA also counts the parts of an activation or a softmax.

_FREE_CALLS = {"Sharding"}


def of_tensorflow_loop(loop: Any) -> float | None:
    """Returns the operations of one iteration of the loop that a concrete TensorFlow function consists of."""
    return _of_tensorflow(loop, _loop_body(loop.graph), loops=1)


def of_tensorflow_function(function: Any) -> float | None:
    """Returns the operations of a concrete TensorFlow function."""
    return _of_tensorflow(function, function.graph, loops=0)


def _of_tensorflow(function: Any, graph: Any, loops: int) -> float | None:
    by_compiler = _by_xla(function, loops) if is_for_xla(graph) else None
    return _of_graph(graph) if by_compiler is None else by_compiler


def _by_xla(function: Any, loops: int) -> float | None:
    """Returns the operations of a function by XLA's cost analysis; None if they are unknown.

    TensorFlow passes a traced function to XLA, and jaxlib, which is part of every installation, has the analysis.
    Neither API is public: if one is missing or fails, the number is unknown.

    Args:
      function: A concrete function. An unknown first dimension of an input counts as 1.
      loops: The number of loops whose bodies are to be counted once. With more loops, XLA counts too little.
    """
    try:
        import tensorflow as tf
        from jaxlib import _jax, xla_client  # type: ignore[attr-defined]
        from tensorflow.python.eager.polymorphic_function import compiler_ir

        given = tf.nest.flatten(function.structured_input_signature)
        specs = [tf.TensorSpec([size or 1 for size in spec.shape], spec.dtype) for spec in given if spec is not None]
        device = tf.constant(0.0).device  # where functions run; TensorFlow's own way to find it draws a random number
        with warnings.catch_warnings(action="ignore"):
            serialized = compiler_ir.from_concrete_function(function, specs)(stage="hlo_serialized", device_name=device)
        module = xla_client.hlo.HloModule.from_serialized_hlo_module_proto(serialized)
        text = module.to_string()
        calls = set(re.findall(r'custom_call_target="([^"]+)"', text))
        if text.count(" while(") != loops or calls - _FREE_CALLS:
            return None
        flops = _jax.hlo_module_cost_analysis(xla_client.make_cpu_client(), module).get("flops")
        return None if flops is None else float(flops)
    except Exception as error:
        logger.debug("XLA's cost analysis failed: %s: %s", type(error).__name__, error)
        return None


# -- a TensorFlow graph -----------------------------------------------------------------------------------------------

# As in XLA, matrix products and convolutions count by their definition, element-wise arithmetic as one operation per
# element, and of several branches the most expensive one counts. A loop, or an operation whose work the graph does not
# show, makes the number unknown.

# fmt: off
_BY_OUTPUT = {
    "Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Maximum", "Minimum", "Neg", "Square", "Abs", "Sqrt",
    "Rsqrt", "Relu", "Relu6", "LeakyRelu", "BiasAdd", "SquaredDifference", "Select", "SelectV2", "Greater", "Less",
    "GreaterEqual", "LessEqual", "Equal", "Pow", "Xdivy",
}
_BY_INPUT = {
    "Sum", "Mean", "Max", "Min", "Prod", "ArgMax", "ArgMin", "AddN", "BiasAddGrad", "L2Loss", "MaxPool", "AvgPool",
    "Cumsum",
}
# fmt: on
_ELSEWHERE = ("Cudnn", "XlaCall", "XlaLaunch", "PyFunc", "EagerPyFunc")
_OPAQUE = (*_ELSEWHERE, "FFT", "Cholesky", "Matrix", "Svd", "Qr", "Lu")
_NOT_DETERMINISTIC = ("MaxPoolGrad", "MaxPool3DGrad", "ResizeBilinearGrad")  # in XLA, which therefore rejects them
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_WHILE = ("While", "StatelessWhile")


class _UnknownError(Exception):
    """The graph does not show the number."""


def _of_graph(graph: Any) -> float | None:
    """Returns the operations of a graph of known shapes; None if it does not show them."""
    try:
        return _total(graph)
    except _UnknownError:
        return None


def _loop_body(graph: Any) -> Any:
    """Returns the graph of the body of the first loop."""
    loop = next(op for op in graph.get_operations() if op.type in _WHILE)
    return _function(graph, loop.get_attr("body").name)


def is_for_xla(graph: Any) -> bool:
    """Returns whether XLA can count a graph: it rejects some operations, and counts the body of a loop once."""
    return not any(op.type in _WHILE or op.type.startswith((*_ELSEWHERE, *_NOT_DETERMINISTIC)) for op in _walk(graph))


def _walk(graph: Any) -> Iterator[Any]:
    """Yields the operations of a graph, and those of the functions and branches in it."""
    for op in _needed(graph):
        yield op
        for inner in _called(graph, op):
            yield from _walk(inner)


def _total(graph: Any) -> float:
    """Returns the sum of all operations of a graph that are executed."""
    total = 0.0
    for op in _needed(graph):
        inner = [_total(called) for called in _called(graph, op)]
        total += max(inner) if inner else _cost(op)
    return total


def _called(graph: Any, op: Any) -> list[Any]:
    """Returns the graph of the function that an operation calls, or of each of its branches."""
    if op.type in _CALLS:
        names = [op.get_attr("f")]
    elif op.type in _BRANCHES:
        named = ("then_branch", "else_branch")
        names = [op.get_attr(name) for name in named] if "If" in op.type else op.get_attr("branches")
    else:
        return []
    return [_function(graph, name.name) for name in names]


def _needed(graph: Any) -> list[Any]:
    """Returns the operations that an output or a variable update depends on; TensorFlow prunes the others."""
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    found: dict[int, Any] = {}
    while waiting:
        op = waiting.pop()
        if id(op) not in found:
            found[id(op)] = op
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return list(found.values())


def _function(graph: Any, name: str) -> Any:
    while graph is not None:
        definition = graph._functions.get(name)
        if definition is not None:
            return definition.graph
        graph = getattr(graph, "outer_graph", None)
    raise _UnknownError(name)


def _cost(op: Any) -> float:
    if op.type in _WHILE or op.type.startswith(_OPAQUE):
        raise _UnknownError(op.type)
    if op.type in _PRODUCTS:
        return 2.0 * _size(op.outputs[0]) * _inner_size(op)
    if op.type == "Einsum":
        return _einsum(op)
    if op.type.startswith(_CONVOLUTIONS):
        return _convolution(op)
    if op.type in _BY_OUTPUT:
        return _size_if_known(op.outputs[0])
    return sum(_size_if_known(tensor) for tensor in op.inputs) if op.type in _BY_INPUT else 0.0


def _size(tensor: Any) -> float:
    shape = tensor.shape
    if shape.rank is None or None in shape.as_list():
        raise _UnknownError(tensor.name)
    return float(math.prod(shape.as_list()))


def _size_if_known(tensor: Any) -> float:
    try:
        return _size(tensor)
    except _UnknownError:  # for element-wise operations: the gradient of an embedding, which is small
        return 0.0


def _inner_size(op: Any) -> float:
    """Returns the length of the rows of the first factor."""
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    size = op.inputs[0].shape[-2 if transposed else -1]
    if size is None:
        raise _UnknownError(op.name)
    return float(size)


def _einsum(op: Any) -> float:
    """Returns two operations for each combination of indices, as for a matrix product."""
    equation = op.get_attr("equation").decode()
    sizes: dict[str, float] = {}
    for letters, tensor in zip(equation.split("->")[0].split(","), op.inputs, strict=True):
        if "..." in letters or tensor.shape.rank is None or None in tensor.shape.as_list():
            raise _UnknownError(equation)
        sizes |= dict(zip(letters, tensor.shape.as_list(), strict=True))
    return (2.0 if len(op.inputs) > 1 else 1.0) * math.prod(sizes.values())


def _convolution(op: Any) -> float:
    """Returns two operations for each output of the convolution and each weight that contributes to it.

    The gradients of a convolution need as many operations as the convolution itself.
    """
    if "BackpropFilter" in op.type:
        weights, outputs = op.outputs[0], op.inputs[2]
    elif "BackpropInput" in op.type:
        weights, outputs = op.inputs[1], op.inputs[2]
    else:
        weights, outputs = op.inputs[1], op.outputs[0]
    channels = math.prod(weights.shape[-2:] if op.type.startswith("Depthwise") else weights.shape[-1:])
    return 2.0 * _size(outputs) * _size(weights) / channels
