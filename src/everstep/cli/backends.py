"""Choosing the backend, and loading Keras with it."""

import contextlib

from everstep.data import load_tensorflow
from everstep.engine import backend
from everstep.errors import UsageError


def choose_backend(name: str | None) -> str:
    """Selects the backend, before Keras or anything of the project is imported; returns its name.

    Raises:
      UsageError: It is unknown or not installed.
    """
    return backend.select(name, "--backend")


def load_backend(seed: int | None = None) -> None:
    """Loads Keras with the backend that was selected, and initialises its devices.

    Import what needs Keras first: the seed, if given, is set last, before the first object of the user is created.
    """
    from everstep.engine import devices

    if seed is not None:
        backend.prepare(seed)
    devices()


def load_project_backend() -> None:
    """Loads what a run of a project needs: Keras with its devices, and TensorFlow for exports."""
    load_backend()
    with contextlib.suppress(UsageError):  # an estimator can do without
        load_tensorflow("exporting a SavedModel")
