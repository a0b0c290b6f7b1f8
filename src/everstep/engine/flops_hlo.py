"""Operations of a TensorFlow function, by XLA's cost analysis of the program before it is optimized.

TensorFlow hands a function that it has traced to XLA, and jaxlib, which is part of every installation, has the
analysis: as on JAX, then, and nothing is compiled. Neither way in is public; what is not there any more, or is
refused, makes the number unknown.
"""

import logging
import re
import warnings
from typing import Any

import tensorflow as tf

logger = logging.getLogger(__name__)

_FREE_CALLS = {"Sharding"}


def operations(function: Any, loops: int = 0) -> float | None:
    """Returns the operations of a function; None if they cannot be known.

    Args:
      function: A concrete function. Where the first dimension of an input is left open it counts as 1.
      loops: How many loops the program has whose bodies are to be counted once. With more of them, XLA counted too
        little.
    """
    try:
        module = _program(function)
        text = module.to_string()
        calls = set(re.findall(r'custom_call_target="([^"]+)"', text))
        if text.count(" while(") != loops or calls - _FREE_CALLS:
            return None
        return _counted(module)
    except Exception as error:  # whatever is not there, or is refused
        logger.debug("no analysis by XLA: %s: %s", type(error).__name__, error)
        return None


def _program(function: Any) -> Any:
    """Returns what XLA is given to compile."""
    from jaxlib import xla_client
    from tensorflow.python.eager.polymorphic_function import compiler_ir

    device = tf.constant(0.0).device  # where functions run; asked for it, TensorFlow would draw a random number
    with warnings.catch_warnings(action="ignore"):
        serialized = compiler_ir.from_concrete_function(function, _specs(function))(
            stage="hlo_serialized", device_name=device
        )
    return xla_client.hlo.HloModule.from_serialized_hlo_module_proto(serialized)


def _specs(function: Any) -> list[tf.TensorSpec]:
    given = tf.nest.flatten(function.structured_input_signature)
    return [tf.TensorSpec([size or 1 for size in spec.shape], spec.dtype) for spec in given if spec is not None]


def _counted(module: Any) -> float | None:
    from jaxlib import _jax, xla_client  # type: ignore[attr-defined]

    flops = _jax.hlo_module_cost_analysis(xla_client.make_cpu_client(), module).get("flops")
    return None if flops is None else float(flops)
