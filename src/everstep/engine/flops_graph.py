"""Operations of a TensorFlow graph, counted one by one: where the compiler's own analysis cannot be had.

Matrix products and convolutions count as they are defined, element-wise arithmetic as one operation for each element,
and of branches the costliest, as the compiler does it. A loop, and whatever does its work where the graph does not
show it, make the number unknown.
"""

import math
from collections.abc import Iterator
from typing import Any

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
_NOT_DETERMINISTIC = ("MaxPoolGrad", "MaxPool3DGrad", "ResizeBilinearGrad")  # in XLA, which therefore refuses them
_CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_WHILE = ("While", "StatelessWhile")


class _UnknownError(Exception):
    """The number cannot be told from the graph."""


def operations(graph: Any) -> float | None:
    """Returns the operations of a graph of known shapes; None if they cannot be told from it."""
    try:
        return _total(graph)
    except _UnknownError:
        return None


def loop_body(graph: Any) -> Any:
    """Returns the graph of what the first loop of a graph repeats."""
    loop = next(op for op in graph.get_operations() if op.type in _WHILE)
    return _function(graph, loop.get_attr("body").name)


def is_for_xla(graph: Any) -> bool:
    """Tells whether XLA can count a graph: it refuses some operations, loudly, and a loop it would count once."""
    return not any(op.type in _WHILE or op.type.startswith((*_ELSEWHERE, *_NOT_DETERMINISTIC)) for op in _walk(graph))


def _walk(graph: Any) -> Iterator[Any]:
    """Yields the operations of a graph, and those of the functions and branches in it."""
    for op in _needed(graph):
        yield op
        for inner in _called(graph, op):
            yield from _walk(inner)


def _total(graph: Any) -> float:
    """Returns what all operations of a graph come to that are carried out."""
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
    """Returns the operations that an output or a change of a variable depends on; TensorFlow leaves out the others."""
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
