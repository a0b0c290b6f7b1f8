"""From a task's name to a task that is ready, and to a run of it."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.checkpoint.remote import is_url
from everstep.engine import backend as backends
from everstep.errors import UsageError
from everstep.frontends import Verbose, log_output, verbosity
from everstep.projects import FLOW, tracking_uri
from everstep.projects.flow.own_run import initialize
from everstep.projects.flow.project import FlowProject, require_steps
from everstep.projects.flow.recording import ENVIRONMENT, FlowContext, UsedCatalog
from everstep.projects.flow.settings import FlowSettings, compose
from everstep.projects.flow.task import FlowTask, chain_of
from everstep.run import OWN_FILES, print_line, read, refuse_foreign


def create_task(
    task: str | type[FlowTask],
    overrides: Sequence[str] = (),
    project: storage.PathLike | FlowProject | None = None,
    *,
    model_dir: storage.PathLike | None = None,
    new: bool = False,
    backend: str | None = None,
    allow_change: Sequence[str] = (),
    verbose: Verbose = True,
) -> Any:
    """Returns a task with its parameters and its catalog, ready for `run()`, or for one step after the other.

        task = create_task("Mnist_B", ["Mnist_B.epoch=1"])
        task.fetch_data()
        task.preprocessing_train()

    Args:
      task: The name of a task of the project, or a class, such as one of a notebook's cell.
      overrides: Values that win over all files.
      project: The project, or a folder in it; by default the nearest from the current folder upwards.
      model_dir: The run directory; by default `runs/<Task>-<digest of the configuration>` in the project.
      new: Whether to start a new run although one did not end.
      backend: The Keras backend; by default `KERAS_BACKEND`, else TensorFlow if it is installed.
      allow_change: Keys that a resumed run may change although they alter what it computes.
      verbose: 0 or False prints nothing, 1, True or "auto" progress, 2 a line per epoch.

    Raises:
      UsageError: There is no such project or task; or all problems in its configuration.
    """
    home = project if isinstance(project, FlowProject) else FlowProject.find(project)
    name = backends.select(backend, "--backend")
    cls = _class(task, home)
    chain = [base.__name__ for base in chain_of(cls)]
    settings = compose(
        home.root / "config", chain, list(dict.fromkeys([*home.tasks(), *chain[:-1]])), overrides, home.name
    )
    redaction.learn(settings.as_dict())
    with log_output(verbose):
        tracking_uri(home.root)  # one that cannot be used is an error before anything is done
    catalog = settings.open_catalog(home.root)
    made = cls.__new__(cls)
    directory = _directory(home.root, settings, name, new) if model_dir is None else _named(model_dir)
    made._everstep_context = context = FlowContext(
        *(settings, settings.params.watched(), UsedCatalog(catalog), home.root, directory, name),
        allow_change=tuple(allow_change),
        verbose=verbosity(verbose),
        names_directory=model_dir is not None,
    )
    _initialize(made, context)
    return made


def _initialize(task: Any, context: FlowContext) -> None:
    """Calls the task's `__init__`, with the blocks of `parameters.yaml` if it takes them.

    Raises:
      UsageError: It needs other arguments.
    """
    signature = inspect.signature(task.__init__)
    first = next((each for each in signature.parameters.values() if each.kind in _POSITIONAL), None)
    takes = first is not None and (first.name == "params" or first.default is first.empty)
    given = (context.blocks,) if takes else ()
    try:
        signature.bind(*given)
    except TypeError as error:
        name = type(task).__name__
        remedy = "define it as __init__(self), or as __init__(self, params)"
        raise UsageError(f"cannot be called: {error}", key=f"{name}.__init__", remedy=remedy) from None
    initialize(task, given)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _class(task: str | type[FlowTask], project: FlowProject) -> type[FlowTask]:
    if isinstance(task, type):
        if not issubclass(task, FlowTask):
            raise UsageError("expected a class derived from FlowTask", key="task", received=task)
        return require_steps(task)
    if task not in project.tasks():
        project.refuse_unwritten(task)
        project.load()
    return project.task(task)


def run_flow(task: str | type[FlowTask], overrides: Sequence[str] = (), project: Any = None, **settings: Any) -> Any:
    """Creates a task as `create_task` does, and runs it; returns it, with `metrics`, `history`, `model`, `directory`.

        done = run_flow("Mnist_B", ["Mnist_B.epoch=1"])
        done.metrics["test acc"]

    Raises:
      UsageError: The request is invalid; nothing is left behind.
      TrainingError: The run started and failed.
    """
    made = create_task(task, overrides, project, **settings)
    execute(made)
    return made


def execute(task: FlowTask) -> None:
    """Runs a task that `create_task` returned; prints its settings first."""
    context = task._everstep_opened()
    if context.verbose:
        _print_settings(context)
    with log_output(context.verbose):
        task.run()


def _named(model_dir: storage.PathLike) -> Path:
    if is_url(model_dir) or not str(model_dir):
        raise UsageError("expected a folder of this machine", key="--model-dir", received=str(model_dir))
    directory = Path(model_dir).expanduser().absolute()
    refuse_foreign(directory, (*OWN_FILES, FLOW.settings, ENVIRONMENT, "training.png", "model.keras"))
    return directory


def _directory(root: Path, settings: FlowSettings, backend: str, new: bool) -> Path:
    """Returns the directory of a run that did not end, else the first that is free."""
    first = root / "runs" / f"{settings.task}-{settings.digest(backend)}"
    directory, number = first, 1
    while directory.exists() and (new or _is_complete(directory)):
        number += 1
        directory = first.with_name(f"{first.name}-{number}")
    return directory


def _is_complete(directory: Path) -> bool:
    if not (directory / "run.json").is_file():
        return False
    return bool(read(directory).get("flow", {}).get("complete"))


def _print_settings(context: FlowContext) -> None:
    """Prints the chain, the parameters and where the run is."""
    settings = context.settings
    print_line(settings.shown_chain)
    print_line(settings.params.to_yaml().rstrip())
    print_line(f"run {context.directory}")
