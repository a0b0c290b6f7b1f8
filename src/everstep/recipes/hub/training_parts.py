"""What of a KerasHub model is trained: adapters, a quantized backbone, frozen variables."""

import re
from collections.abc import Sequence
from typing import Any

import keras

from everstep.engine import adapted_layers
from everstep.errors import UsageError, nearest
from everstep.recipes.hub.config import HubTaskConfig, LoraConfig


def choose_trained(model: Any, config: HubTaskConfig) -> None:
    """Quantizes the backbone, adds adapters, and freezes variables, as configured.

    Raises:
      UsageError: A name matches nothing, or nothing would be trained.
    """
    if config.quantize:
        quantize(model.backbone, config.quantize)
    if config.lora is not None:
        add_adapters(model.backbone, config.lora)
    freeze(model, config.freeze)
    if not model.trainable_variables:
        raise UsageError("leaves nothing to train", key="task.freeze", received=list(config.freeze))


def quantize(backbone: Any, mode: str) -> None:
    """Stores the kernels of the backbone's dense layers in a smaller type.

    The embeddings keep theirs: tied ones are the last layer, too, and a quantized last layer has no gradient.
    """
    for layer in backbone._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.Dense | keras.layers.EinsumDense):
            layer.quantize(mode)


def add_adapters(backbone: Any, config: LoraConfig) -> None:
    """Freezes the backbone, and adds adapters to its target layers.

    Raises:
      UsageError: No layer has the name of a target; names the nearest.
    """
    layers = [layer for layer in backbone._flatten_layers(include_self=False) if layer.weights]
    able = {layer.name for layer in layers if hasattr(layer, "enable_lora")}
    targets = list(config.targets) or list(backbone.default_lora_layer_names())
    if unknown := [name for name in config.targets if name not in able]:
        reason = f"no layer of {type(backbone).__name__} that can have an adapter has this name"
        raise UsageError(reason, key="task.lora.targets", received=unknown[0], remedy=nearest(unknown[0], able))
    if not able.intersection(targets):
        reason = f"KerasHub chooses no layers for {type(backbone).__name__}"
        raise UsageError(
            reason, key="task.lora.targets", received=[], remedy=f"choose some of {', '.join(sorted(able))}"
        )
    backbone.enable_lora(config.rank, targets)
    for layer in adapted_layers(backbone):
        for variable in layer.trainable_variables:
            variable.trainable = variable.name.startswith("lora_")  # a file of adapters has no biases
        if config.alpha is not None:
            layer.lora_alpha = config.alpha


def freeze(model: Any, patterns: Sequence[str]) -> None:
    """Makes variables not trainable whose names match one of the regular expressions.

    Raises:
      UsageError: One matches no variable that would be trained.
    """
    trained = model.trainable_variables
    for pattern in patterns:
        found = [variable for variable in trained if re.search(pattern, variable.path)]
        if not found:
            names = ", ".join(variable.path for variable in trained[:8])
            remedy = f"the trained variables are {names}{', …' if len(trained) > 8 else ''}"
            raise UsageError("matches no trained variable", key="task.freeze", received=pattern, remedy=remedy)
        for variable in found:
            variable.trainable = False
