"""Exporting a checkpoint; loaded when the backend is chosen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.cli.request import Resolved
from everstep.cli.trained import experiment_of
from everstep.config import get_task
from everstep.data.special import first_samples
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.export.folder import export_all
from everstep.export.from_checkpoint import load_checkpoint
from everstep.inference.finding import Found
from everstep.inference.keras_model import load_keras
from everstep.loop.creation import create_trainer
from everstep.run.averaged import as_checkpoint
from everstep.run.chosen import Chosen
from everstep.task.task import unpack

_ROWS, _OPEN = 2, 32  # of a batch that is made up: samples, and the size of a dimension that is open


def export_chosen(found: Found, chosen: Chosen, place: Path, imports: Sequence[str] | None) -> list[Path]:
    """Writes the model of a run with the weights of a checkpoint, in every form there is; returns what was written.

    Args:
      found: The run.
      chosen: The checkpoint, or several for their average.
      place: The folder to write to.
      imports: Modules that know the run's experiment.

    Raises:
      UsageError: The model cannot be had, or has other weights.
      TrainingError: A checkpoint is damaged.
    """
    model, sample = _model(found, imports)
    with as_checkpoint(chosen) as path:
        load_checkpoint(model, path)
    return export_all(model, place, sample)


def _model(found: Found, imports: Sequence[str] | None) -> tuple[keras.Model, Any]:
    """Returns the model and a batch for it: as it was exported, which needs no data, else as the experiment has it."""
    wrong = None
    try:
        exported = _exported(found)
    except UsageError as error:  # such as a class that only the experiment's module knows
        exported, wrong = None, error
    if exported is not None:
        return exported
    try:
        return _built(experiment_of(found.directory or Path(), imports))
    except UsageError as error:
        raise wrong or error from None


def _exported(found: Found) -> tuple[keras.Model, Any] | None:
    """Returns the model that the run has exported, and a batch; None where there is none, or it cannot be tried."""
    if found.model is None or found.model.is_dir():
        return None
    model = load_keras(found.model)
    inputs = getattr(model, "_inputs_struct", None) or list(model.inputs or ())
    if not inputs or any(one.dtype == "string" for one in keras.tree.flatten(inputs)):
        return None
    sample = keras.tree.map_structure(_made_up, inputs)
    return model, sample[0] if isinstance(sample, list) and len(sample) == 1 else sample


def _made_up(tensor: Any) -> np.ndarray:
    """Returns a batch of numbers for an input: they are compared with nothing but what another copy says of them."""
    shape = [_ROWS if tensor.shape[0] is None else tensor.shape[0], *tensor.shape[1:]]
    sizes = [_OPEN if size is None else size for size in shape]
    random, dtype = np.random.default_rng(0), keras.backend.standardize_dtype(tensor.dtype)
    if "float" in dtype:
        return random.normal(size=sizes).astype(dtype if dtype != "bfloat16" else "float32")
    return random.integers(0, 2, sizes).astype(dtype)


def _built(resolved: Resolved) -> tuple[keras.Model, Any]:
    """Returns the model as the experiment builds it, and a batch of its data."""
    params = resolved.params
    backend.prepare(params.runtime.seed)
    trainer = create_trainer(params, get_task(params.task), train=False, evaluate=True)
    trainer.close()
    return trainer.model, first_samples(unpack(trainer.example)[0], 8)
