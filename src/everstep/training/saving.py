"""What `save_model` needs to know of a model that nobody has trained here: that it is sound, and what goes in."""

from typing import Any

import keras
import numpy as np

from everstep.errors import TrainingError, UsageError
from everstep.loop.recovery import non_finite

_BATCH = 2


def refuse_what_is_not_finite(model: keras.Model) -> None:
    """Refuses a model with NaN or an infinity among its weights.

    Raises:
      TrainingError: Names the first such weight.
    """
    bad = non_finite({weight.path: keras.ops.convert_to_numpy(weight.value) for weight in model.weights})
    if bad:
        raise TrainingError(
            f"{bad[0]} is not finite, so the model is not saved: look at the data and the learning rate"
        )


def sample_inputs(model: keras.Model) -> Any:
    """Returns a batch of made-up inputs, in the structure that the model declares.

    Raises:
      UsageError: It declares none, or inputs of any size.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs or any(size is None for one in inputs for size in one.shape[1:]):
        raise UsageError(
            "sample: the model does not say what goes into it; pass save_model(sample=…), a batch of inputs"
        )
    structure = getattr(model, "_inputs_struct", None)
    random = np.random.default_rng(0)
    return keras.tree.map_structure(lambda one: _made_up(one, random), inputs[0] if structure is None else structure)


def _made_up(one: Any, random: np.random.Generator) -> np.ndarray:
    shape, kind = (_BATCH, *one.shape[1:]), keras.backend.standardize_dtype(one.dtype)
    return random.normal(size=shape).astype(kind) if "float" in kind else np.zeros(shape, kind)
