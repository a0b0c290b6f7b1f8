"""The table of commands: those of the core, and those that companions and other packages register.

`everstep --help` prints this table and imports the module of none of them, which keeps it fast.
"""

import importlib
import logging
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everstep import __version__
from everstep.cli.command import Command, experiment_keys, new_app
from everstep.entry_points import entry_points, missing_companions
from everstep.errors import UsageError

ENTRY_POINTS = "everstep.commands"
"""The group of the entry points: the name of each is that of a command."""

_EXPERIMENTS = "Experiments, by their registered names"
_LAST = ("Any of these", "Runs that exist, however they were trained", "Tools")
_ANY, _RUNS, _TOOLS = _LAST

_CORE = {
    "experiments": Command(_EXPERIMENTS, "List the registered experiments.", "everstep.cli.experiments"),
    "config": Command(
        _EXPERIMENTS, "Print an experiment's resolved configuration.", "everstep.cli.config", experiment_keys
    ),
    "train": Command(
        _EXPERIMENTS, "Train an experiment; run again, it resumes.", "everstep.cli.train", experiment_keys, True
    ),
    "eval": Command(
        _EXPERIMENTS,
        "Evaluate a checkpoint of a run, by default the newest.",
        "everstep.cli.eval",
        experiment_keys,
        trains_as_several=True,
    ),
    "launch": Command(_ANY, "Run a command; restart it when it dies.", "everstep.cli.launch"),
    "runs": Command(_RUNS, "List runs, show, compare or remove them.", "everstep.cli.runs"),
    "ui": Command(_RUNS, "Show runs in a browser: a live table, curves, reports.", "everstep.cli.ui"),
    "report": Command(_RUNS, "Write an HTML report: curves, errors, the worst samples.", "everstep.cli.report"),
    "predict": Command(_RUNS, "Predict new data with a trained model.", "everstep.cli.predict"),
    "generate": Command(_RUNS, "Let a trained language model continue texts.", "everstep.cli.generate"),
    "export": Command(_RUNS, "Write the model of a run for others to load.", "everstep.cli.export"),
    "reproduce": Command(_RUNS, "Repeat a run from its record, and compare.", "everstep.cli.reproduce"),
    "doctor": Command(_TOOLS, "Check this machine: backends, extras, disk.", "everstep.cli.doctor"),
    "records": Command(_TOOLS, "Write TFRecord files, or inspect them.", "everstep.cli.records"),
}


def _registered() -> dict[str, Command]:
    """Returns the commands of companions and of other packages; a broken one is a warning in the log."""
    found = {}
    for point in entry_points(ENTRY_POINTS):
        try:
            found[point.name] = point.load()
        except Exception as error:  # a broken package must not stop this command
            logging.getLogger(__name__).warning(
                "command %r (%s) is skipped: %s: %s", point.name, point.value, type(error).__name__, error
            )
    return found


COMMANDS = {**_registered(), **_CORE}
"""Each command by its name."""


def groups() -> dict[str, dict[str, str]]:
    """Returns the commands as `everstep --help` shows them: a heading, and the summary of each command below it."""
    shown: dict[str, dict[str, str]] = {_EXPERIMENTS: {}}
    for name, command in {**_CORE, **COMMANDS}.items():
        shown.setdefault(command.group, {})[name] = command.summary
    return {title: shown[title] for title in [*(title for title in shown if title not in _LAST), *_LAST]}


class CommandInterrupted(Exception):
    """Ctrl-C ended a command; typer would turn that into an exit code and lose the message of the interrupt."""

    def __init__(self, interrupt: KeyboardInterrupt) -> None:
        super().__init__(str(interrupt))
        self.interrupt = interrupt


class LazyGroup(TyperGroup):
    """A group whose commands are placeholders for modules."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise CommandInterrupted(interrupt) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands in their groups, without rich, which takes long to load."""
        for title, group in groups().items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:11}", summary) for name, summary in group.items()])  # one width for all

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that `args` name, from its module, and the arguments left for it.

        Raises:
          UsageError: It is a command of a companion that is not there.
        """
        companion = missing_companions(ENTRY_POINTS).get(args[0])
        if companion is not None and args[0] not in COMMANDS:
            raise UsageError(f"everstep {args[0]} belongs to {companion}, which this installation is without")
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else placeholder, rest


def load(name: str) -> Any:
    """Imports a command's module; returns the command in its `app`."""
    command = typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
    command.name = name
    return command


app = new_app(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
"""The command line's root."""


@app.callback(invoke_without_command=True, epilog="Example: everstep train mnist/local")
def everstep(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show every frame of errors.")] = False,
) -> None:
    """Train Keras 3 models and never lose a step."""
    if version:
        print(f"everstep {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.summary)(lambda: None)
