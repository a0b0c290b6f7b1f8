"""Exporting the model of a run: with the weights it was evaluated with, in every format that the backend has.

The same steps for every entry point:

    sample = sample_inputs(model, batch)
    with evaluated_weights(optimizer):
        export_all(model, directory, sample)
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.data.sparse import first_samples
from everstep.errors import TrainingError, UsageError
from everstep.export.comparison import unchanged
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model
from everstep.export.torch_program import export_torch_program
from everstep.task.initial.load import load
from everstep.task.optim.ema import find_average

logger = logging.getLogger(__name__)

SAVED_MODEL = "saved_model"
"""The name of a SavedModel in a run's `export/`."""

_SAMPLES = 8  # of a batch that an export is compared on
_MADE_UP_SAMPLES, _OPEN_SIZE = 2, 32  # of a batch that is made up: its size, and that of other open dimensions


@contextlib.contextmanager
def evaluated_weights(optimizer: Any) -> Iterator[None]:
    """Inside the block the model has the weights that it is evaluated with: their averages, if the optimizer has any.

    Works on the Keras objects, which have to be current: they are in an action, and after `Trainer.close`.

    Args:
      optimizer: The optimizer that trained the model, or None. The model keeps its weights if it averages none.
    """
    average = find_average(optimizer)
    pairs = [] if average is None else average.pairs()
    with unchanged([variable for variable, _ in pairs]):
        for variable, mean in pairs:
            variable.assign(mean.value)  # of a bfloat16 Variable itself JAX makes no array
        yield


def sample_inputs(model: keras.Model, inputs: Any = None) -> Any:
    """Returns a small batch of inputs, to compare an export with the live model on.

    Args:
      model: The model.
      inputs: A batch of its inputs, of which the first few are taken; None to make up numbers of the shapes that the
        model declares.

    Raises:
      UsageError: The model declares no inputs, or strings, which cannot be made up.
    """
    if inputs is not None:
        return first_samples(inputs, _SAMPLES)
    structure = getattr(model, "_inputs_struct", None)
    declared = structure if structure is not None else list(getattr(model, "inputs", None) or ())
    leaves = keras.tree.flatten(declared)
    if not leaves or any(one.dtype == "string" for one in leaves):
        raise UsageError(
            f"model {model.name!r} does not declare inputs that numbers can be made up for",
            key="sample",
            remedy="pass a batch of inputs",
        )
    batch = keras.tree.map_structure(lambda one: made_up(one.shape, one.dtype), declared)
    return batch[0] if isinstance(batch, list) and len(batch) == 1 else batch


def made_up(shape: Sequence[int | None], dtype: Any) -> np.ndarray:
    """Returns numbers for an input: normally distributed, or 0 and 1 for whole numbers, which may be table indices."""
    dtype = keras.backend.standardize_dtype(dtype)
    sizes = [size or (_OPEN_SIZE if axis else _MADE_UP_SAMPLES) for axis, size in enumerate(shape)]
    random = np.random.default_rng(0)
    if "float" in dtype:
        return random.normal(size=sizes).astype("float32" if dtype == "bfloat16" else dtype)
    return random.integers(0, 2, sizes).astype(dtype)


def export_all(model: keras.Model, directory: Path, sample: Any) -> list[Path]:
    """Writes every format of the backend, each loaded back and compared; returns the paths that were written.

    `model.keras` on each backend; `saved_model/` on TensorFlow and JAX; `model.pt2` on PyTorch. A format that this
    model or this machine cannot have is a warning.
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
        for name, write in (("model.keras", export_keras), serving_format()):
            try:
                write(model, directory / name, sample)
                written.append(directory / name)
            except (UsageError, TrainingError, NotImplementedError, TypeError, ValueError) as error:
                logger.warning("not exported as %s: %s", name, error)
    if not written and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
    return written


def serving_format() -> tuple[str, Callable[[keras.Model, Path, Any], None]]:
    """Returns the file name of the format that the backend's own tools serve, and the function that writes it."""
    if keras.backend.backend() == "torch":
        return "model.pt2", export_torch_program
    return SAVED_MODEL, export_saved_model


def load_checkpoint(model: keras.Model, path: storage.PathLike) -> None:
    """Gives a model the weights that a run has saved; on an error the model is as it was.

    Of a run that averages its weights, the averages: what it evaluates, and exports itself.

    Args:
      model: The model, built.
      path: What `task.init_checkpoint` takes as well: a run directory or its `checkpoints`, of which the newest is
        taken; one checkpoint; a `.keras` or `.weights.h5` file; a TensorFlow checkpoint.

    Raises:
      UsageError: There is no checkpoint, or it does not have every weight of this model.
    """
    load(model, os.path.abspath(path), key="checkpoint_path", complete=True)


def refuse_non_finite(model: keras.Model) -> None:
    """Checks that a model has no NaN and no infinity among its weights.

    Raises:
      TrainingError: Names the first such weight.
    """
    for weight in model.weights:
        values = keras.ops.convert_to_numpy(weight.value)
        if values.dtype.kind not in "biuUS" and not np.isfinite(values).all():
            raise TrainingError(
                f"{weight.path} is not finite, so the model is not saved",
                remedy="check the data and the learning rate",
            )


@contextlib.contextmanager
def _remembering(model: keras.Model) -> Iterator[None]:
    """After the block a stateful RNN has what it had before it: the comparison calls the model."""
    layers = [layer for layer in model._flatten_layers() if getattr(layer, "stateful", False)]
    kept = [variable for layer in layers for variable in keras.tree.flatten(getattr(layer, "states", None) or [])]
    values = [keras.ops.convert_to_numpy(variable).copy() for variable in kept]
    try:
        yield
    finally:
        for variable, value in zip(kept, values, strict=True):
            variable.assign(value)
