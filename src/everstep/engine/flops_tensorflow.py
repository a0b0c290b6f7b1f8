"""Operations of a step on TensorFlow: by XLA's cost analysis, and where XLA cannot take the step, from its graph.

Both look at the function that ran, and compile nothing. The graph gives a little less, a tenth for a transformer: XLA
also counts what an activation or a softmax is made of.
"""

from typing import Any

import tensorflow as tf

from everstep.data import nest
from everstep.engine import flops_graph, flops_hlo
from everstep.task.task import unpack
from everstep.types import Batch


def train_step(engine: Any, batch: Batch | None) -> float | None:
    """Returns the operations of a training step; looks at the loop that ran batches of this one's shape."""
    loop = _loop(engine, batch)
    return None if loop is None else _operations(loop, flops_graph.loop_body(loop.graph), loops=1)


def inference_step(engine: Any, batch: Batch) -> float | None:
    """Returns the operations of the inference step; traces it."""
    specs = nest.map_leaves(lambda leaf: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype)), unpack(batch)[0])
    step = tf.function(
        lambda features: engine.task.inference_step(engine.composed(features), engine.model), autograph=False
    )
    function = step.get_concrete_function(specs)
    return _operations(function, function.graph, loops=0)


def device_kind() -> str:
    """Returns the kind of device that computes."""
    devices = tf.config.list_physical_devices("GPU")
    return str(tf.config.experimental.get_device_details(devices[0]).get("device_name", "")) if devices else "cpu"


def _loop(engine: Any, batch: Batch | None) -> Any:
    """Returns the compiled loop for batches like this one; None if there was none."""
    shapes = [tuple(leaf.shape) for leaf in nest.flatten(batch)]
    loops = {tuple(shape for shape, _ in key[1:]): loop for key, loop in engine._loops.items() if key[0] == "train"}
    return loops.get(tuple(shapes))


def _operations(function: Any, graph: Any, loops: int) -> float | None:
    by_compiler = flops_hlo.operations(function, loops) if flops_graph.is_for_xla(graph) else None
    return flops_graph.operations(graph) if by_compiler is None else by_compiler
