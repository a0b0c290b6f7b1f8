"""The arguments and options that several commands share, each spelled and explained once."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any

import typer

from everstep.cli import completion
from everstep.cli.command import refuse_script
from everstep.errors import UsageError

Experiment = Annotated[
    str | None,
    typer.Argument(metavar="EXPERIMENT", help="A registered name: mnist/local.", autocompletion=completion.experiments),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Values that win over all others: trainer.train_steps=100.",
        autocompletion=completion.keys,
    ),
]
ExperimentName = Annotated[
    str | None, typer.Option("--experiment", metavar="NAME", help="The experiment, as an option.")
]
ConfigFiles = Annotated[
    list[str] | None,
    typer.Option("--config-file", metavar="FILE", help="YAML, JSON or TOML with values; repeatable."),
]
ConfigDir = Annotated[
    str | None,
    typer.Option("--config-dir", metavar="DIR", help="Config groups to choose in: task/model=large."),
]
GinFiles = Annotated[
    list[str] | None, typer.Option("--gin-file", metavar="FILE", help="A file with gin bindings; repeatable.")
]
GinParams = Annotated[
    list[str] | None,
    typer.Option("--gin-params", metavar="TEXT", help="A binding: TrainerConfig.train_steps = 100; repeatable."),
]
ParamsOverride = Annotated[
    list[str] | None,
    typer.Option("--params-override", metavar="TEXT", help="Values: a.b=1,c=2 or {a: {b: 1}}; repeatable."),
]
Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="NAME", help="tensorflow, jax or torch.", autocompletion=completion.backends),
]
Seed = Annotated[str | None, typer.Option("--seed", metavar="N", help="Sets runtime.seed.")]
LimitTrain = Annotated[
    str | None,
    typer.Option("--limit-train", metavar="N", help="Only N batches a training epoch: task.train_data.limit_batches."),
]
LimitEval = Annotated[
    str | None,
    typer.Option("--limit-eval", metavar="N", help="Only N validation batches: task.validation_data.limit_batches."),
]
OverfitBatches = Annotated[
    str | None,
    typer.Option("--overfit-batches", metavar="N", help="Train and evaluate on N batches: trainer.overfit_batches."),
]
SanityEval = Annotated[
    str | None,
    typer.Option(
        "--sanity-eval", metavar="N", help="Evaluate N batches before a new run: trainer.sanity_validation_steps."
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="A module that registers experiments; repeatable."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="STEP", help="A step, best, or last; 100,200,300 or last:3 for the average of several."
    ),
]
AllowChange = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Resume although this key has another value than before; repeatable."),
]
MaxRestarts = Annotated[int, typer.Option(metavar="N", help="Restart it, up to N times, when it dies.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

RunName = Annotated[str | None, typer.Argument(metavar="RUN_NAME", help="A folder in the project's runs/.")]
RunNameOption = Annotated[str | None, typer.Option("--run-name", metavar="NAME", help="The run, as an option.")]
ProjectRoot = Annotated[str, typer.Option("--project-root", metavar="DIR", help="The project.")]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="The data, in place of the config file's.")
]
ProjectBackend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="tensorflow, jax or torch; by default $KERAS_BACKEND.",
        autocompletion=completion.backends,
    ),
]
Project = Annotated[
    str | None, typer.Option("--project", metavar="DIR", help="The project; by default the one around this folder.")
]

EvalOnly = Annotated[bool, typer.Option("--eval-only", help="Evaluate the export; train nothing.")]
GpuType = Annotated[str, typer.Option(metavar="NAME", help="Slurm, Kubernetes: p100, v100, t4, …; any, or none.")]
Hours = Annotated[float, typer.Option(metavar="H", help="Slurm: hours at a time; the next job resumes.")]
Mem = Annotated[int, typer.Option(metavar="MIB", help="Slurm, Kubernetes: memory.")]
NumCpu = Annotated[int, typer.Option("--n-cpu", metavar="N", help="Slurm, Kubernetes: processors.")]
Email = Annotated[str, typer.Option(metavar="ADDRESS", help="Slurm: who gets mail when it begins, ends or fails.")]
Address = Annotated[
    str | None, typer.Option(metavar="URL", help="Ray: the dashboard; by default $RAY_ADDRESS, or this machine's.")
]


@dataclasses.dataclass
class ExperimentRequest:
    """What the user typed to select an experiment and its values."""

    experiment: Experiment = None  # one with `=` in it is an override
    overrides: Overrides = None
    name: ExperimentName = None
    config_files: ConfigFiles = None
    config_dir: ConfigDir = None
    gin_files: GinFiles = None
    gin_params: GinParams = None
    params_override: ParamsOverride = None
    backend: Backend = None
    seed: Seed = None
    limit_train: LimitTrain = None
    limit_eval: LimitEval = None
    overfit_batches: OverfitBatches = None
    sanity_eval: SanityEval = None
    imports: Imports = None


def takes_request(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the arguments and options of an `ExperimentRequest`, which it receives as one, named `request`.

    Args:
      *without: Fields that the command does not take from its user.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        taken = {field.name: field.type for field in dataclasses.fields(ExperimentRequest) if field.name not in without}

        @functools.wraps(command)
        def call(**given: Any) -> None:
            request = ExperimentRequest(**{name: given.pop(name) for name in taken})
            command(request=request, **given)

        own = [p for p in inspect.signature(command).parameters.values() if p.name != "request"]
        keyword = inspect.Parameter.KEYWORD_ONLY
        shared = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in taken.items()]
        parameters = [*(p.replace(kind=keyword) for p in own), *shared]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        return call

    return decorate


def one_name(argument: str | None, option: str | None, command: str) -> str:
    """Returns the run's name, given as an argument or in the older spelling `--run_name=…`.

    Raises:
      UsageError: No name is given, or two.
    """
    if argument is not None and option is not None and argument != option:
        raise UsageError(
            f"the command line also names the run {argument!r}", key="--run-name", received=option, remedy="keep one"
        )
    name = argument if argument is not None else option
    if name is None:
        raise UsageError(
            "no run is given", key="RUN_NAME", remedy=f"everstep {command} RUN_NAME, a folder in the project's runs/"
        )
    refuse_script(name, "RUN_NAME")
    return name


def whole_number(option: str, text: str, least: int, most: int) -> int:
    """Returns an option's text as a whole number.

    Raises:
      UsageError: It is no number, or out of range.
    """
    number = int(text) if text.strip().removeprefix("-").isdecimal() else None
    if number is None or not least <= number <= most:
        raise UsageError(f"expected a whole number from {least} to {most}", key=option, received=text)
    return number


def real_number(option: str, text: str, above: float, below: float) -> float:
    """Returns an option's text as a number between two others.

    Raises:
      UsageError: It is no number, or out of range.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not above < number < below:
        raise UsageError(f"expected a number above {above:g} and below {below:g}", key=option, received=text)
    return number
