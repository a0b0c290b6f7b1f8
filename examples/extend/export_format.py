"""An export format: an `.npz` file of a model's weights and configuration."""

import keras
import numpy as np

from everstep.export import ExportFormat, register_format


def write(model, path):
    """Writes a model when training is done."""
    arrays = {
        f"weight{number:04}": array for number, array in enumerate(model.get_weights())
    }
    np.savez(path, config=model.to_json(), **arrays)


def load(path):
    """Returns a function from a batch of inputs to outputs.

    Everstep compares them with those of the model.
    """
    with np.load(path) as arrays:
        model = keras.models.model_from_json(str(arrays["config"]))
        model.set_weights([arrays[name] for name in sorted(arrays) if name != "config"])
    return lambda batch: model(batch, training=False)


def why_not(model):
    """Returns why a model cannot be written, or an empty text, before training."""
    return (
        ""
        if isinstance(model, keras.Sequential)
        else f"holds sequential models, and {model.name!r} is none"
    )


NPZ = register_format(ExportFormat("npz", "model.npz", write, load, why_not))
