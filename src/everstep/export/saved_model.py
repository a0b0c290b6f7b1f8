"""`saved_model/`: the forward pass alone, for TensorFlow Serving and all that reads SavedModels."""

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.errors import UsageError, missing_extra
from everstep.export.comparison import check_same, live_outputs

_BACKENDS = ("tensorflow", "jax")


def export_saved_model(model: keras.Model, directory: storage.PathLike, sample: Any) -> None:
    """Writes the model as a SavedModel that is known to load and to answer as the model does.

    It holds the variables of the model and nothing of the optimizer; the endpoint is `serve`. The batch may
    have any size. With the JAX backend it holds programs for the CPU and for the device trained on.

    Args:
      model: The trained model.
      directory: Where to write; one that is there is replaced.
      sample: One batch of model inputs, NumPy arrays in any nesting.

    Raises:
      UsageError: TensorFlow is not installed, or the backend cannot write SavedModels.
      TrainingError: What was written answers otherwise than the model. Nothing is left of it.
    """
    _require_support()
    storage.prepare_directory(Path(directory).parent)
    signature = _signature(model, sample)
    expected = live_outputs(model, sample)
    with storage.atomic_path(directory) as temporary:
        _write(model, temporary, signature)
        actual = _loaded_outputs(temporary, signature, sample)
        check_same(model, expected, actual, f"{str(directory)!r}")


def _require_support() -> None:
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        raise UsageError(f"a SavedModel needs the backend {' or '.join(_BACKENDS)}, not {backend!r}")
    if importlib.util.find_spec("tensorflow") is None:
        raise missing_extra("tensorflow", "tensorflow", "exporting a SavedModel")


def _signature(model: keras.Model, sample: Any) -> Any:
    """Returns the input spec in the structure of `sample`: as the model declares it, else any batch size."""
    arrays = keras.tree.flatten(sample)
    declared = getattr(model, "inputs", None) or ()
    if len(declared) == len(arrays):
        specs = [keras.InputSpec(shape=i.shape, dtype=i.dtype, name=i.name) for i in declared]
    else:
        specs = [keras.InputSpec(shape=(None, *a.shape[1:]), dtype=a.dtype.name) for a in arrays]
    return keras.tree.pack_sequence_as(sample, specs)


def _write(model: keras.Model, directory: Path, signature: Any) -> None:
    with _quiet_tensorflow(), warnings.catch_warnings():
        # Keras calls JAX and NumPy in ways they deprecate; nobody who exports a model can change that.
        warnings.simplefilter("ignore", DeprecationWarning)
        options = {"verbose": False, "input_signature": [signature], **_options()}
        model.export(directory, format="tf_saved_model", **options)


def _options() -> dict[str, Any]:
    """Returns what Keras needs to know on JAX: without it, a GPU's program cannot be loaded on a CPU."""
    if keras.backend.backend() != "jax":
        return {}
    import jax

    device = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    platforms = ("cpu",) if device == "cpu" else ("cpu", device)
    serialization = {"native_serialization": True, "native_serialization_platforms": platforms}
    return {"jax2tf_kwargs": {"with_gradient": False, **serialization}}


def _loaded_outputs(directory: Path, signature: Any, sample: Any) -> list[np.ndarray]:
    import tensorflow as tf

    with _quiet_tensorflow():
        loaded = tf.saved_model.load(str(directory))
    inputs = keras.tree.map_structure(lambda a, spec: tf.constant(a, spec.dtype), sample, signature)
    return [np.asarray(output) for output in tf.nest.flatten(loaded.serve(inputs))]


@contextlib.contextmanager
def _quiet_tensorflow() -> Iterator[None]:
    """Holds back the note that TensorFlow logs about every SavedModel."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        logger.setLevel(level)
