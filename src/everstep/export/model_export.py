"""Exports a model in every format that the backend has, with the weights it was evaluated with.

Every entry point takes the same steps:

    sample = sample_inputs(model, batch)
    with evaluated_weights(optimizer):
        export_all(model, directory, sample)
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.data.sparse import first_samples
from everstep.engine.hub import adapted_layers, is_hub_task
from everstep.errors import TrainingError, UsageError
from everstep.export import hub_preset
from everstep.export.comparison import unchanged
from everstep.export.dequantized import without_quantization
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model
from everstep.export.torch_program import export_torch_program
from everstep.task.initial.load import load
from everstep.task.optim.ema import find_average

logger = logging.getLogger(__name__)

SAVED_MODEL = "saved_model"
"""The name of a SavedModel in a run's `export/`."""

_WITHOUT_ADAPTERS = ("model.keras", hub_preset.PRESET, hub_preset.TRANSFORMERS)
"""The formats into which Keras merges adapters; a quantized model is written in floating point."""

_SAMPLES = 8  # to compare an export on
_RANDOM_SAMPLES, _OPEN_SIZE = 2, 32  # of a random batch: its size, and the size of other open dimensions


@contextlib.contextmanager
def evaluated_weights(optimizer: Any) -> Iterator[None]:
    """Inside the block the model has the weights it is evaluated with: the optimizer's moving averages, if any.

    It swaps the values of Keras variables, which must be current: they are in an action, and after `Trainer.close`.

    Args:
      optimizer: The optimizer that trained the model, or None. Without averages the model keeps its weights.
    """
    average = find_average(optimizer)
    pairs = [] if average is None else average.pairs()
    with unchanged([variable for variable, _ in pairs]):
        for variable, mean in pairs:
            variable.assign(mean.value)  # JAX cannot convert a bfloat16 Variable itself to an array
        yield


def sample_inputs(model: keras.Model, inputs: Any = None) -> Any:
    """Returns a small batch of inputs to compare an export with the live model on.

    Args:
      model: The model to export.
      inputs: A batch of its inputs, of which the first few are taken; None for random numbers in the shapes that the
        model declares.

    Raises:
      UsageError: The model declares no inputs, or string inputs, for which there are no random values.
    """
    structure = getattr(model, "_inputs_struct", None)
    declared = structure if structure is not None else list(getattr(model, "inputs", None) or ())
    if inputs is not None:
        if isinstance(inputs, dict) and isinstance(declared, dict):  # a batch may have more, such as packed documents
            inputs = {name: value for name, value in inputs.items() if name in declared}
        return first_samples(inputs, _SAMPLES)
    leaves = keras.tree.flatten(declared)
    if not leaves or any(one.dtype == "string" for one in leaves):
        raise UsageError(
            f"is needed, since model {model.name!r} declares no numeric inputs",
            key="sample",
            remedy="pass a batch of inputs",
        )
    batch = keras.tree.map_structure(lambda one: random_input(one.shape, one.dtype), declared)
    return batch[0] if isinstance(batch, list) and len(batch) == 1 else batch


def random_input(shape: Sequence[int | None], dtype: Any) -> np.ndarray:
    """Returns random numbers for an input: normal floats, and for integers 0 and 1, which are valid table indices."""
    dtype = keras.backend.standardize_dtype(dtype)
    sizes = [size or (_OPEN_SIZE if axis else _RANDOM_SAMPLES) for axis, size in enumerate(shape)]
    random = np.random.default_rng(0)
    if "float" in dtype:
        return random.normal(size=sizes).astype("float32" if dtype == "bfloat16" else dtype)
    return random.integers(0, 2, sizes).astype(dtype)


def export_all(model: keras.Model, directory: Path, sample: Any) -> list[Path]:
    """Writes every format of the backend, each loaded back and compared; returns the paths that were written.

    `model.keras` on each backend; `saved_model/` on TensorFlow and JAX; `model.pt2` on PyTorch. For a KerasHub model
    also `preset/`, and where they exist `adapter.lora.h5` and `transformers/`. A format that this model or this machine
    does not support is skipped with a warning.

    Args:
      model: The model, built.
      directory: The folder to write to; it is created.
      sample: A batch of model inputs, as `sample_inputs` returns it.
    """
    if type(model).call is keras.Model.call:
        logger.warning(
            "not exported: model %r has no call(), so it has no outputs; save its parts, as in "
            "model.generator.save('generator.keras')",
            model.name,
        )
        return []
    written = []
    stateful = [layer for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    states = [state for layer in stateful for state in keras.tree.flatten(getattr(layer, "states", None) or [])]
    with unchanged(states):  # the comparison calls the model
        merged: Any = None
        for name, write in _formats(model, directory):
            try:
                if name in _WITHOUT_ADAPTERS and merged is None:
                    merged = without_quantization(model, sample)
                write(merged if name in _WITHOUT_ADAPTERS else model, directory / name, sample)
                written.append(directory / name)
            except (UsageError, TrainingError, NotImplementedError, TypeError, ValueError) as error:
                logger.warning("not exported as %s: %s", name, error)
    if not written and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
    return written


def _formats(model: keras.Model, directory: Path) -> Iterator[tuple[str, Callable[[Any, Path, Any], None]]]:
    """Yields the file name and the writer of each format that a model may have."""
    yield "model.keras", export_keras
    yield serving_format()
    if not is_hub_task(model):
        return
    yield hub_preset.PRESET, hub_preset.export_preset
    if adapted_layers(model):
        yield hub_preset.ADAPTER, hub_preset.export_adapter
    if (directory / hub_preset.PRESET).is_dir() and hub_preset.converts(model):
        yield (
            hub_preset.TRANSFORMERS,
            functools.partial(hub_preset.export_transformers, preset=directory / hub_preset.PRESET),
        )


def serving_format() -> tuple[str, Callable[[keras.Model, Path, Any], None]]:
    """Returns the file name and the writer of the backend's serving format: SavedModel, or PyTorch's program."""
    if keras.backend.backend() == "torch":
        return "model.pt2", export_torch_program
    return SAVED_MODEL, export_saved_model


def load_checkpoint(model: keras.Model, path: storage.PathLike) -> None:
    """Loads the weights that a run has saved into a model; after an error the model is unchanged.

    For a run that averages its weights, these are the averages, which the run itself evaluates and exports.

        load_checkpoint(model, "runs/digits")

    Args:
      model: The model, built.
      path: A run directory or its `checkpoints`, for the newest checkpoint; one checkpoint; or anything else that
        `task.init_checkpoint` takes: a `.keras` or `.weights.h5` file, a TensorFlow checkpoint.

    Raises:
      UsageError: There is no checkpoint, or it lacks a weight of this model.
    """
    load(model, os.path.abspath(path), key="checkpoint_path", complete=True)


def refuse_non_finite(model: keras.Model) -> None:
    """Checks that all weights of a model are finite.

    Raises:
      TrainingError: A weight is NaN or infinite; the message names the first one.
    """
    for weight in model.weights:
        values = keras.ops.convert_to_numpy(weight.value)
        if values.dtype.kind not in "biuUS" and not np.isfinite(values).all():
            raise TrainingError(
                "is not finite, so the model is not saved",
                key=weight.path,
                remedy="check the data and the learning rate",
            )
