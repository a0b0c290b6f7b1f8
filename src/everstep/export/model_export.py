"""Exports a model in every format that the backend has, with the weights it was evaluated with.

Every entry point takes the same steps:

    sample = sample_inputs(model, batch)
    with evaluated_weights(optimizer):
        export_all(model, directory, sample)
"""

import contextlib
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.data import first_samples
from everstep.engine import adapted_layers, is_hub_task
from everstep.errors import TrainingError, UsageError, cause_in_keras, kind_of, missing_extra, nearest, plain_text
from everstep.export import hub_preset
from everstep.export.comparison import unchanged
from everstep.export.dequantized import without_quantization
from everstep.export.formats import FORMATS, SAVED_MODEL, file_of, registered_formats
from everstep.export.keras_file import export_keras
from everstep.export.saved_model import export_saved_model
from everstep.export.torch_program import export_torch_program
from everstep.keras_internals import Functional
from everstep.task.initial import load
from everstep.task.optim import find_average

logger = logging.getLogger(__name__)

_WITHOUT_ADAPTERS = ("model.keras", hub_preset.PRESET, hub_preset.TRANSFORMERS)
"""The formats into which Keras merges adapters; a quantized model is written in floating point."""

_CALLS_BY_NAME = (Functional.call, keras.Sequential.call)  # models that find the arrays of a dictionary by name

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
      UsageError: The model declares an input that is no key of the batch; or none is given, and it declares no inputs,
        or string inputs, for which there are no random values.
    """
    structure = getattr(model, "_inputs_struct", None)
    declared = structure if structure is not None else list(getattr(model, "inputs", None) or ())
    if inputs is not None:
        if isinstance(inputs, Mapping) and type(model).call in _CALLS_BY_NAME:
            inputs = _named_inputs(model, declared, inputs)
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


def _named_inputs(model: keras.Model, declared: Any, batch: Mapping[str, Any]) -> Any:
    """Returns the inputs that a model declares from a batch, which may have more, such as packed documents.

    Of a model with a single input it is the array alone: Keras warns of a dictionary, and prints the whole batch.

    Raises:
      UsageError: The batch lacks one.
    """
    names = list(declared) if isinstance(declared, Mapping) else [one.name for one in keras.tree.flatten(declared)]
    if not names:
        return batch
    if missing := [name for name in names if name not in batch]:
        own = next((key for key in batch if key not in names), next(iter(batch), "x"))
        raise UsageError(
            f"its input {missing[0]!r} is no key of the batch, which has {', '.join(map(repr, batch))}",
            key="model",
            received=model.name,
            remedy=f"name each input after the key that it takes, as in keras.Input(…, name={own!r})",
        )
    return batch[declared.name] if isinstance(declared, keras.KerasTensor) else {name: batch[name] for name in names}


def random_input(shape: Sequence[int | None], dtype: Any) -> np.ndarray:
    """Returns random numbers for an input: normal floats, and for integers 0 and 1, which are valid table indices."""
    dtype = keras.backend.standardize_dtype(dtype)
    sizes = [size or (_OPEN_SIZE if axis else _RANDOM_SAMPLES) for axis, size in enumerate(shape)]
    random = np.random.default_rng(0)
    if "float" in dtype:
        return random.normal(size=sizes).astype("float32" if dtype == "bfloat16" else dtype)
    return random.integers(0, 2, sizes).astype(dtype)


def chosen_formats(formats: Any, model: keras.Model, key: str = "export") -> list[str]:
    """Returns the formats that are asked for, each once, after checking that the model can have them here.

    Args:
      formats: The name of a format, or several: of `FORMATS`, or of those that were registered.
      model: The model to export.
      key: What the user calls the argument.

    Raises:
      UsageError: A name is unknown, or the format is none of this backend, this model or this machine.
    """
    listed = [formats] if isinstance(formats, str) else formats
    if not isinstance(listed, Iterable) or isinstance(listed, Mapping):
        raise UsageError(
            f"expected names of formats, such as ['keras', 'saved_model'], not {kind_of(formats)}",
            key=key,
            received=formats,
        )
    given = list(listed)
    for name in given:
        known = {**FORMATS, **registered_formats()}
        if not isinstance(name, str) or name not in known:
            hint = _WRITTEN_BY_KERAS.get(name, "") if isinstance(name, str) else ""
            hint = hint or nearest(str(name), known)
            raise UsageError("is not a format of exported models", key=key, received=name, remedy=hint)
        if reason := _why_not(name, model):
            raise UsageError(reason, key=key, received=name)
    return list(dict.fromkeys(given))


_WRITTEN_BY_KERAS = {
    "onnx": "Keras writes it: keras.saving.load_model('model.keras').export('model.onnx', format='onnx')",
    "openvino": "Keras writes it: keras.saving.load_model('model.keras').export('model', format='openvino')",
    "h5": "Keras writes it: keras.saving.load_model('model.keras').save('model.h5'); the format in use is 'keras'",
    "tflite": "Keras writes it: keras.saving.load_model('model.keras').export('model.tflite', format='litert')",
}
"""How to get files in formats that are not written here, because nothing compares them with the model."""


def _why_not(name: str, model: keras.Model) -> str:
    """Returns why a model cannot have a format on this machine; empty if it can."""
    backend = keras.backend.backend()
    if name not in FORMATS:
        return registered_formats()[name].why_not(model)
    if name == "saved_model" and backend == "torch":
        return "is written on TensorFlow and JAX; on PyTorch the format for serving is 'torch'"
    if name == "torch" and backend != "torch":
        return f"is written on PyTorch, and the backend is {backend!r}; the format for serving is 'saved_model'"
    if name == "saved_model" and not _has_tensorflow():
        return str(missing_extra("tensorflow", "tensorflow", "exporting a SavedModel"))
    if name in ("preset", "adapter", "transformers") and not is_hub_task(model):
        return f"is a format of KerasHub's tasks, and model {model.name!r} is none"
    if name == "adapter" and not adapted_layers(model):
        return f"holds LoRA adapters, and model {model.name!r} has none"
    if name == "transformers" and not hub_preset.converts(model):
        return f"KerasHub does not convert {type(model).__name__} for Transformers"
    return ""


def _has_tensorflow() -> bool:
    return importlib.util.find_spec("tensorflow") is not None


def export_all(model: keras.Model, directory: Path, sample: Any, formats: Sequence[str] | None = None) -> list[Path]:
    """Writes the formats of a model, each loaded back and compared; returns the paths that were written.

    `model.keras` on each backend; `saved_model/` on TensorFlow and JAX; `model.pt2` on PyTorch. For a KerasHub model
    also `preset/`, and where they exist `adapter.lora.h5` and `transformers/`. A format that this model or this machine
    does not support is skipped with a warning.

    Args:
      model: The model, built.
      directory: The folder to write to; it is created.
      sample: A batch of model inputs, as `sample_inputs` returns it.
      formats: Names of formats; None for every format that ships and that this backend has; a SavedModel only where
        TensorFlow, which writes it, is installed. `transformers` is converted from the preset, which is then written
        as well.
    """
    names = None if formats is None else {file_of(name) for name in formats}
    if names is not None and hub_preset.TRANSFORMERS in names:
        names.add(hub_preset.PRESET)
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
        for name, write in _formats(model, directory, formats or ()):
            if name not in names if names is not None else name == SAVED_MODEL and not _has_tensorflow():
                continue
            try:
                if name in _WITHOUT_ADAPTERS and merged is None:
                    merged = without_quantization(model, sample)
                write(merged if name in _WITHOUT_ADAPTERS else model, directory / name, sample)
                written.append(directory / name)
            except OSError:
                raise
            except Exception as error:  # the model's own code may fail in any way, such as on few samples
                own = isinstance(error, UsageError | TrainingError)
                logger.warning("not exported as %s: %s", name, plain_text(error) if own else cause_in_keras(error))
    if not written and directory.is_dir() and not any(directory.iterdir()):
        directory.rmdir()
    return written


def _formats(
    model: keras.Model, directory: Path, asked: Sequence[str]
) -> Iterator[tuple[str, Callable[[Any, Path, Any], None]]]:
    """Yields the file name and the writer of each format that a model may have; of other packages, those asked for."""
    yield "model.keras", export_keras
    yield serving_format()
    for name in asked:
        if name not in FORMATS:
            yield registered_formats()[name].file, registered_formats()[name].export
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
