"""`saved_model/`: the forward pass, for TensorFlow Serving and everything else that reads SavedModels."""

import contextlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep import storage
from everstep.engine import suspended
from everstep.errors import UsageError, missing_extra
from everstep.export.comparison import check_same, live_outputs
from everstep.export.open_sizes import own_symbols, shared_symbols
from everstep.startup_messages import held_back

logger = logging.getLogger(__name__)

_BACKENDS = ("tensorflow", "jax")


def export_saved_model(model: keras.Model, directory: storage.PathLike, sample: Any) -> None:
    """Writes the model as a SavedModel, after checking that it loads and has the model's outputs.

    It contains the variables of the model and none of the optimizer; the endpoint is `serve`. The batch may have any
    size. With the JAX backend it contains programs for the CPU and for the device of this process. Where JAX cannot
    trace the model with a length of its own for each input, those that are equal in the sample have to be equal, or
    all get the length of the sample; a warning says so.

    Args:
      model: The trained model.
      directory: The directory to write; an existing SavedModel is replaced.
      sample: One batch of model inputs, NumPy arrays in any nesting.

    Raises:
      UsageError: TensorFlow is not installed, the backend cannot write SavedModels, or the directory holds something
        else.
      TrainingError: The SavedModel has other outputs than the model; it is removed.
    """
    require_support()
    require_replaceable(Path(directory))
    storage.prepare_directory(Path(directory).parent)
    signature = _signature(model, sample)
    with suspended(), storage.atomic_path(directory) as temporary:
        expected = live_outputs(model, sample)
        if keras.backend.backend() == "jax":
            signature = _write_on_jax(model, temporary, signature, sample, str(directory))
        else:
            _write(model, temporary, signature)
        actual = _loaded_outputs(temporary, signature, sample)
        check_same(model, expected, actual, str(directory))


def _signature(model: keras.Model, sample: Any) -> Any:
    """Returns input specs in the structure of `sample`: those the model declares, else of any batch size."""
    arrays = keras.tree.flatten(sample)
    if declared := declared_inputs(model, sample):
        specs = [keras.InputSpec(shape=i.shape, dtype=i.dtype, name=i.name) for i in declared]
    else:
        specs = [keras.InputSpec(shape=(None, *a.shape[1:]), dtype=a.dtype.name) for a in arrays]
    return keras.tree.pack_sequence_as(sample, specs)


def _write_on_jax(model: keras.Model, directory: Path, signature: Any, sample: Any, name: str) -> Any:
    """Writes the model with sizes as open as JAX can trace it; returns the input specs that it was written with.

    JAX does not trace a model that combines two lengths unless they have one symbol, nor a layer that compares a length
    with a number, as position embeddings of KerasHub do. Warnings call the SavedModel `name`.
    """

    def write(specs: Any, symbols: list[str]) -> None:
        _write(model, directory, specs, polymorphic_shapes=[keras.tree.pack_sequence_as(specs, symbols)])

    def warn(limit: str, specs: Any) -> None:
        listed = ", ".join(f"{spec.name}: {spec.shape}" for spec in keras.tree.flatten(specs))
        logger.warning("on JAX this model is exported for %s: %s in %s", limit, listed, name)

    shapes, sizes = ([tuple(one.shape) for one in keras.tree.flatten(tree)] for tree in (signature, sample))
    pairs = [pair for shape, size in zip(shapes, sizes, strict=True) for pair in zip(shape[1:], size[1:], strict=False)]
    lengths = [size for open_size, size in pairs if open_size is None]
    try:
        write(signature, own_symbols(shapes))
        return signature
    except Exception:  # JAX and Keras raise many kinds, here and below
        if not lengths:
            raise
    if len(set(lengths)) < len(lengths):
        with contextlib.suppress(Exception):
            write(signature, shared_symbols(shapes, sizes))
            warn("inputs of equal lengths", signature)
            return signature
    sized = _sized_like(signature, sample)
    write(sized, own_symbols([spec.shape for spec in keras.tree.flatten(sized)]))
    warn("inputs of one length", sized)
    return sized


def _sized_like(signature: Any, sample: Any) -> Any:
    """Returns the input specs with the sizes of `sample`, except for the batch."""

    def sized(spec: keras.InputSpec, array: np.ndarray) -> keras.InputSpec:
        return keras.InputSpec(shape=(None, *array.shape[1:]), dtype=spec.dtype, name=spec.name)

    return keras.tree.map_structure(sized, signature, sample)


def declared_inputs(model: keras.Model, sample: Any) -> list[Any]:
    """Returns the model's inputs in the flat order of `sample`; [] if it does not declare as many.

    Keras finds the inputs of a dictionary by name, whatever the order in which the model lists them.
    """
    declared = list(getattr(model, "inputs", None) or ())
    if len(declared) != len(keras.tree.flatten(sample)):
        return []
    named = {one.name: one for one in declared}
    if isinstance(sample, Mapping) and not isinstance(getattr(model, "_inputs_struct", None), Mapping):
        return list(keras.tree.flatten({key: named[key] for key in sample})) if named.keys() == sample.keys() else []
    return declared


def _write(model: keras.Model, directory: Path, signature: Any, **of_jax: Any) -> None:
    def forward(inputs: Any) -> Any:
        # Explicit, because layers that augment images treat None as training.
        return model(inputs, training=False)

    options = {"jax2tf_kwargs": {**jax2tf_options(), **of_jax}} if of_jax else {}
    with quiet():
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", forward, [signature], **options)
        archive.write_out(directory, verbose=False)


def _loaded_outputs(directory: Path, signature: Any, sample: Any) -> list[np.ndarray]:
    import tensorflow as tf

    with quiet():
        loaded = tf.saved_model.load(str(directory))
    inputs = keras.tree.map_structure(lambda a, spec: tf.constant(a, spec.dtype), sample, signature)
    return [np.asarray(output) for output in tf.nest.flatten(loaded.serve(inputs))]


def require_support() -> None:
    """Checks that this process can write SavedModels.

    Raises:
      UsageError: TensorFlow is not installed, or the backend cannot write them.
    """
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        raise UsageError(
            f"a SavedModel needs the backend {' or '.join(_BACKENDS)}",
            key="backend",
            received=backend,
            remedy="for PyTorch use everstep.export.export_torch_program",
        )
    if importlib.util.find_spec("tensorflow") is None:
        raise missing_extra("tensorflow", "tensorflow", "exporting a SavedModel")


def require_replaceable(directory: Path) -> None:
    """Checks that a directory may be replaced by a SavedModel.

    Raises:
      UsageError: It holds something else.
    """
    if directory.is_dir() and any(directory.iterdir()) and not (directory / "saved_model.pb").is_file():
        raise UsageError(
            "exists, is not a SavedModel, and would be replaced",
            key="directory",
            received=str(directory),
            remedy="use a new directory, or timestamped=True, which adds one below it",
        )


def jax2tf_options() -> dict[str, Any]:
    """Returns the options to write JAX's programs with: for the CPU, and for the device of this process.

    Without them, a program written on a machine with a GPU cannot be loaded on one without.
    """
    import jax

    device = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    platforms = ("cpu",) if device == "cpu" else ("cpu", device)
    return {"with_gradient": False, "native_serialization": True, "native_serialization_platforms": platforms}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses what TensorFlow logs while it loads and about every SavedModel, and deprecations inside Keras."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings(), contextlib.nullcontext() if "tensorflow" in sys.modules else held_back():
            # Keras calls JAX and NumPy in ways they deprecate; users who export a model cannot change that.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
