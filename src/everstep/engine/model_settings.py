"""What `runtime` changes in a model before it is trained: float8 products, and activations that are recomputed."""

import logging
import warnings
from typing import Any

import keras

from everstep.engine.config import RuntimeConfig
from everstep.engine.remat import rematerialize
from everstep.engine.xla import compiler_options
from everstep.errors import UsageError

logger = logging.getLogger(__name__)


def prepare_model(model: keras.Model, runtime: RuntimeConfig) -> dict[str, Any]:
    """Changes a model as `runtime` requests, and returns what was done, for the record of the run.

    Raises:
      UsageError: The model or the backend does not allow it.
    """
    settings: dict[str, Any] = {"deterministic": runtime.deterministic}
    if runtime.deterministic is False:
        logger.warning("deterministic=false: on a GPU the same run may end with other bits, also when resumed")
    if runtime.float8:
        settings["float8"] = use_float8(model)
    if layers := rematerialize(model, runtime.remat):
        settings["remat"] = layers
    if options := compiler_options(runtime.xla_preset):
        settings["compiler_options"] = options
    return settings


def use_float8(model: keras.Model) -> list[str]:
    """Makes the dense layers of a built model multiply in float8; returns their names.

    Inputs and kernels are rounded to float8 with a scale for each, the gradients of outputs, too. Scales and the
    largest values of the last steps are variables of the layers: they are part of the state of the run.

    Raises:
      UsageError: The backend is not JAX, the model is not built, or has no dense layers.
    """
    key, remedy = "runtime.float8", "remove the key"
    if keras.backend.backend() != "jax":
        reason = f"only XLA turns such products into float8 kernels; on {keras.backend.backend()} they would be slower"
        raise UsageError(reason, key=key, received=True, remedy="train on JAX")
    if not model.built:
        raise UsageError("the model must be built", key=key, received=True, remedy="call it once in build_model")
    if not _in_float8(model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one for each layer that stays as it is
            model.quantize("float8")
    if not (layers := _in_float8(model)):
        raise UsageError("the model has no Dense or EinsumDense layer", key=key, received=True, remedy=remedy)
    return layers


def _in_float8(model: keras.Model) -> list[str]:
    layers = model._flatten_layers(include_self=False)
    return [layer.path for layer in layers if getattr(layer, "quantization_mode", None) == "float8"]
