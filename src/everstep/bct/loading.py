"""Embedding models out of files, as a stranger would load them: no code of theirs is run."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

import everstep.bct.classifier as _classifier  # registers the layer that such files hold
from everstep.bct.embedding import first_line
from everstep.bct.places import local_file
from everstep.errors import UsageError
from everstep.remote import is_url, local_view

_EXPORTED = Path("export", "model.keras")


def load_model(path: str | Path, where: str) -> keras.Model:
    """Returns the model of a `.keras` file, or the exported one of a run directory.

    Python's and NumPy's random numbers go on as if nothing had been loaded.

    Args:
      path: The file or directory.
      where: What named it, for messages: `task.bct.old_model`.

    Raises:
      UsageError: There is no such file, or it cannot be loaded safely.
    """
    file = _file(_here(path, where), where)
    try:
        with unchanged_randomness():
            return keras.saving.load_model(file, compile=False, safe_mode=True)
    except Exception as error:
        raise UsageError(
            f"{where}: {str(file)!r} cannot be loaded without its code ({first_line(error)}): expected a model of "
            f"Keras's own layers and {_classifier.Classifier.__module__}.{_classifier.Classifier.__name__}"
        ) from error


@contextlib.contextmanager
def unchanged_randomness() -> Iterator[None]:
    """Puts Python's and NumPy's generators back afterwards: layers draw the seeds of their initializers from them."""
    before = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _here(path: str | Path, where: str) -> Path:
    """Returns where a model is on this machine; one in a store is fetched."""
    if is_url(path) and not str(path).endswith(".keras"):
        return local_view(str(path), checkpoints=False)
    return local_file(path, where)


def _file(path: Path, where: str) -> Path:
    if path.is_dir():
        if not (path / _EXPORTED).is_file():
            raise UsageError(f"{where}: {str(path)!r} has no {_EXPORTED}: name a run that has finished, or a file")
        return path / _EXPORTED
    if not path.is_file():
        raise UsageError(f"{where}: no such file or directory: {str(path)!r}")
    if path.suffix != ".keras":
        raise UsageError(f"{where}: expected a .keras file or a run directory, received {str(path)!r}")
    return path
