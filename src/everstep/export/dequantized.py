"""A quantized KerasHub model with adapters, as a model in floating point without adapters.

Keras merges adapters into quantized kernels by rounding the sums to integers again: the result has other outputs than
the trained model. Here the kernels become floating point, and the adapters are added to them: nothing is rounded.

A layer in int8 also rounds its inputs. The merged model does not, so its outputs are those of the trained model without
that rounding, and nearly those of the trained model as it is.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from everstep.engine import is_hub_task, not_found
from everstep.export.comparison import check_same, flat_arrays, largest_difference, live_outputs
from everstep.keras_internals import dequantize_with_sz_map

logger = logging.getLogger(__name__)


def quantized_layers(model: Any) -> list[Any]:
    """Returns the layers of a model whose kernels are integers."""
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if getattr(layer, "quantization_mode", None) in ("int8", "int4")]


def without_quantization(model: Any, sample: Any) -> Any:
    """Returns a model in floating point with the outputs of a quantized KerasHub model; any other model as it is.

    Args:
      model: The trained model.
      sample: One batch of its inputs.

    Raises:
      TrainingError: The new model has other outputs.
    """
    if not is_hub_task(model) or not (layers := quantized_layers(model)):
        return model
    merged = _copied(model)
    found = flat_arrays(merged(sample, training=False))
    with exact_inputs(layers):
        check_same(model, live_outputs(model, sample), found, "the model in floating point")
    if any(layer.inputs_quantizer for layer in layers):
        logger.warning(
            "exported models do not round the inputs of layers in %s, as training did: outputs differ by %.2g of their "
            "scale",
            layers[0].quantization_mode,
            largest_difference(live_outputs(model, sample), found),
        )
    return merged


def _copied(model: Any) -> Any:
    """Returns the model with float kernels, into which adapters are merged."""
    backbone = model.backbone.get_config()
    backbone["dtype"] = keras.dtype_policies.get(model.dtype_policy.name)
    with not_found():
        parts = {"backbone": type(model.backbone).from_config(backbone), "preprocessor": model.preprocessor}
        new = type(model).from_config({**model.get_config(), **parts, "compile": False})
    pairs = zip(model._flatten_layers(include_self=False), new._flatten_layers(include_self=False), strict=True)
    for old_layer, layer in pairs:
        known = {variable.name: variable for variable in _own_variables(old_layer)}
        for variable in _own_variables(layer):
            if variable.name == "kernel" and getattr(old_layer, "quantization_mode", None):
                variable.assign(float_kernel(old_layer))
            elif variable.name in ("kernel", "embeddings") and getattr(old_layer, "lora_enabled", False):
                variable.assign(getattr(old_layer, variable.name))
            else:
                variable.assign(known[variable.name].value)
    return new


def float_kernel(layer: Any) -> Any:
    """Returns the kernel of a quantized dense layer in floating point, with its adapter."""
    is_einsum = isinstance(layer, keras.layers.EinsumDense)
    if layer.quantization_mode == "int8":
        scale = layer._adjust_scale_for_dequant(layer.kernel_scale) if is_einsum else layer.kernel_scale
        kernel = ops.cast(layer._kernel, layer.compute_dtype) / scale
    else:
        columns = layer._int4_unpacked_column_size if is_einsum else layer._orig_output_dim
        unpacked = keras.quantizers.unpack_int4(layer._kernel, columns, axis=-1)
        if layer._int4_block_size in (None, -1):
            kernel = ops.cast(unpacked, layer.compute_dtype) / layer.kernel_scale
        else:
            kernel = dequantize_with_sz_map(unpacked, layer.kernel_scale, layer.kernel_zero, layer.g_idx, group_axis=0)
        kernel = ops.reshape(kernel, layer.original_kernel_shape) if is_einsum else kernel
    if layer.lora_enabled:
        kernel = kernel + (layer.lora_alpha / layer.lora_rank) * ops.matmul(layer.lora_kernel_a, layer.lora_kernel_b)
    return kernel


def _own_variables(layer: Any) -> list[Any]:
    return [*layer._trainable_variables, *layer._non_trainable_variables]


@contextlib.contextmanager
def exact_inputs(layers: list[Any]) -> Iterator[None]:
    """Inside the block quantized layers do not round their inputs."""
    rounding = [layer.inputs_quantizer for layer in layers]
    for layer in layers:
        layer.inputs_quantizer = None
    try:
        yield
    finally:
        for layer, quantizer in zip(layers, rounding, strict=True):
            layer.inputs_quantizer = quantizer
