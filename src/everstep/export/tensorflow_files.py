"""What every SavedModel needs here: TensorFlow, quiet, and programs that load on other machines."""

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from everstep.errors import UsageError, missing_extra

_BACKENDS = ("tensorflow", "jax")


def require_support() -> None:
    """Checks that this process can write SavedModels.

    Raises:
      UsageError: TensorFlow is not installed, or the backend cannot.
    """
    backend = keras.backend.backend()
    if backend not in _BACKENDS:
        raise UsageError(
            f"a SavedModel needs the backend {' or '.join(_BACKENDS)}, not {backend!r}; PyTorch's own form is "
            "written by everstep.export.export_torch_program"
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
            f"{str(directory)!r} is there and is no SavedModel: it would be replaced; name a new directory, or export "
            "with timestamped=True, which adds one below it"
        )


def jax2tf_options() -> dict[str, Any]:
    """Returns how JAX's programs are to be written: for the CPU, and for the device trained on.

    Without it, a program written where there is a GPU cannot be loaded where there is none.
    """
    import jax

    device = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    platforms = ("cpu",) if device == "cpu" else ("cpu", device)
    return {"with_gradient": False, "native_serialization": True, "native_serialization_platforms": platforms}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Holds back the note that TensorFlow logs about every SavedModel, and warnings that nobody here can act on."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings():
            # Keras calls JAX and NumPy in ways they deprecate; nobody who exports a model can change that.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)
