"""What Everstep uses of Keras's private modules: no other module names `keras.src`.

When Keras moves or renames something, the repair is here. Each name is loaded when it is first used, since some of
them exist on one backend only, and importing them loads Keras:

    from everstep.keras_internals import to_snake_case    # a function or a class
    from everstep.keras_internals import torch_random     # a module, so that its functions can be replaced
"""

import importlib
from typing import Any

_MODULES = {
    "backend": "keras.src.backend",
    "base_optimizer": "keras.src.optimizers.base_optimizer",
    "global_state": "keras.src.backend.common.global_state",
    "losses": "keras.src.losses.loss",
    "module_utils": "keras.src.utils.module_utils",
    "rng_utils": "keras.src.utils.rng_utils",
    "saving_lib": "keras.src.saving.saving_lib",
    "serialization_lib": "keras.src.saving.serialization_lib",
    "tensorflow_random": "keras.src.backend.tensorflow.random",
    "torch_adam": "keras.src.backend.torch.optimizers.torch_adam",
    "torch_core": "keras.src.backend.torch.core",
    "torch_nn": "keras.src.backend.torch.nn",
    "torch_parallel_optimizer": "keras.src.backend.torch.optimizers.torch_parallel_optimizer",
    "torch_random": "keras.src.backend.torch.random",
    "torch_sgd": "keras.src.backend.torch.optimizers.torch_sgd",
}

_NAMES = {
    "BaseOptimizer": "keras.src.optimizers.base_optimizer",
    "Functional": "keras.src.models.functional",
    "TFOptimizer": "keras.src.backend.tensorflow.optimizer",
    "dequantize_with_sz_map": "keras.src.quantizers.quantizers",
    "draw_seed": "keras.src.random.seed_generator",
    "get_device": "keras.src.backend.torch.core",
    "get_keras_mask": "keras.src.backend.common.masking",
    "set_keras_mask": "keras.src.backend.common.masking",
    "to_snake_case": "keras.src.utils.naming",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def is_of_backend(kind: type) -> bool:
    """Returns whether a class is the backend's own base of a class of Keras, such as of `Layer`."""
    return kind.__module__.startswith("keras.src.backend.")
