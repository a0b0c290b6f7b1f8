"""What the commands for a project's runs are told: which run, of which project, on which data, by which backend."""

import contextlib
import importlib
from typing import Annotated

import typer

from everstep.data.tf_data import load_tensorflow
from everstep.engine import backend as backends
from everstep.errors import UsageError

RunName = Annotated[str | None, typer.Argument(metavar="RUN_NAME", help="A folder in the project's runs/.")]
RunNameOption = Annotated[str | None, typer.Option("--run-name", metavar="NAME", help="The run, as an option.")]
ProjectRoot = Annotated[str, typer.Option("--project-root", metavar="DIR", help="The project.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="The data, in place of what the config file says.")
]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="tensorflow, jax or torch; by default $KERAS_BACKEND.")
]


def one_name(argument: str | None, option: str | None, command: str) -> str:
    """Returns the run that was named, as an argument or in the older spelling `--run_name=…`.

    Raises:
      UsageError: None was, or two.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(f"the command line names the run {argument!r} and --run-name {option!r}; keep one")
    name = argument if argument is not None else option
    if name is None:
        raise UsageError(f"no run is named: everstep {command} RUN_NAME, a folder in the project's runs/")
    return name


def choose_backend(name: str | None) -> str:
    """Decides on the backend, before Keras or anything of the project's is imported; returns its name.

    Raises:
      UsageError: It is unknown or not installed.
    """
    return backends.select(name, "--backend")


def wake_backend() -> None:
    """Loads what a run needs, all of which talks on its first use: Keras with its devices, TensorFlow for exports."""
    importlib.import_module("everstep.engine.accelerator").devices()
    with contextlib.suppress(UsageError):  # an estimator can do without
        load_tensorflow("exporting a SavedModel")
