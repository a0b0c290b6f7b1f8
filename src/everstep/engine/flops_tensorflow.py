"""Operations of a step on TensorFlow, from its graph: no profiler, nothing compiled.

Matrix products and convolutions count as they are defined, element-wise arithmetic as one operation for each element.
A loop inside the step, and whatever does its work where the graph does not show it, make the number unknown.
"""

import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from everstep.data import nest
from everstep.engine.feed import on_host
from everstep.task.task import unpack
from everstep.types import Batch

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
_OPAQUE = ("Cudnn", "XlaCall", "XlaLaunch", "PyFunc", "EagerPyFunc", "FFT", "Cholesky", "Matrix", "Svd", "Qr", "Lu")
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_HEAVY = (*_CONVOLUTIONS, *_PRODUCTS, "Einsum")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_WHILE = ("While", "StatelessWhile")


class _UnknownError(Exception):
    """The number cannot be told from the graph."""


def train_step(engine: Any, batch: Batch | None) -> float | None:
    """Returns the operations of a training step; reads the graph of the loop that ran it."""
    loops = [loop for key, loop in engine._loops.items() if key[0] == "train"]
    if len(loops) != 1:  # batches of several shapes: which of them is the step?
        return None
    graph = loops[0].graph
    loop = next(op for op in graph.get_operations() if op.type in _WHILE)
    return _known(_body(graph, loop))


def inference_step(engine: Any, batch: Batch) -> float | None:
    """Returns the operations of the inference step; traces it."""
    graph = tf.__internal__.FuncGraph("inference")
    with graph.as_default():
        features = nest.map_leaves(_placeholder, unpack(batch)[0])
        outputs = engine.task.inference_step(features, engine.model)
    graph.outputs.extend(tf.nest.flatten(outputs))
    return _known(graph)


def device_kind() -> str:
    """Returns the kind of device that computes."""
    devices = tf.config.list_physical_devices("GPU")
    return str(tf.config.experimental.get_device_details(devices[0]).get("device_name", "")) if devices else "cpu"


def _placeholder(leaf: Any) -> tf.Tensor:
    array = on_host(leaf)
    return tf.compat.v1.placeholder(array.dtype, array.shape)


def _known(graph: Any) -> float | None:
    try:
        return float(sum(_cost(op) for op in _operations(graph)))
    except _UnknownError:
        return None


def _operations(graph: Any) -> Iterator[Any]:
    """Yields the operations of a graph that are carried out, and those of the functions it calls."""
    for op in _needed(graph):
        if op.type in _CALLS:
            yield from _operations(_function(graph, op.get_attr("f").name))
        elif op.type in _BRANCHES:
            _require_light(graph, op)
        else:
            yield op


def _needed(graph: Any) -> list[Any]:
    """Returns the operations that an output or a change of a variable depends on; TensorFlow leaves out the others."""
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    found: dict[int, Any] = {}
    while waiting:
        op = waiting.pop()
        if id(op) not in found:
            found[id(op)] = op
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return list(found.values())


def _require_light(graph: Any, choice: Any) -> None:
    """Refuses branches with products or convolutions in them: which of them runs, the graph does not say."""
    named = ("then_branch", "else_branch")
    names = [choice.get_attr(n) for n in named] if "If" in choice.type else choice.get_attr("branches")
    for name in names:
        if any(op.type.startswith(_HEAVY) for op in _operations(_function(graph, name.name))):
            raise _UnknownError(choice.name)


def _body(graph: Any, loop: Any) -> Any:
    return _function(graph, loop.get_attr("body").name)


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
    except _UnknownError:  # of element-wise work it is the gradient of an embedding, which is small
        return 0.0


def _inner_size(op: Any) -> float:
    """Returns how long the rows of the first factor are."""
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    size = op.inputs[0].shape[-2 if transposed else -1]
    if size is None:
        raise _UnknownError(op.name)
    return float(size)


def _einsum(op: Any) -> float:
    """Returns two operations for each combination of indices, as of a matrix product."""
    equation = op.get_attr("equation").decode()
    sizes: dict[str, float] = {}
    for letters, tensor in zip(equation.split("->")[0].split(","), op.inputs, strict=True):
        if "..." in letters or tensor.shape.rank is None or None in tensor.shape.as_list():
            raise _UnknownError(equation)
        sizes |= dict(zip(letters, tensor.shape.as_list(), strict=True))
    return (2.0 if len(op.inputs) > 1 else 1.0) * math.prod(sizes.values())


def _convolution(op: Any) -> float:
    """Returns two operations for each output of the convolution and each weight that it sees.

    The gradients of a convolution take as many as the convolution itself.
    """
    if "BackpropFilter" in op.type:
        weights, outputs = op.outputs[0], op.inputs[2]
    elif "BackpropInput" in op.type:
        weights, outputs = op.inputs[1], op.inputs[2]
    else:
        weights, outputs = op.inputs[1], op.outputs[0]
    channels = math.prod(weights.shape[-2:] if op.type.startswith("Depthwise") else weights.shape[-1:])
    return 2.0 * _size(outputs) * _size(weights) / channels
