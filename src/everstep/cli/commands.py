"""The table of commands. Each is a module of this package, imported when it is called.

`everstep --help` prints this table and imports none of them, which keeps it fast.
"""

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everstep import __version__

GROUPS = {
    "Experiments, by their registered names": {
        "experiments": "List the registered experiments.",
        "config": "Print an experiment's resolved configuration.",
        "train": "Train an experiment; run again, it resumes.",
        "eval": "Evaluate a checkpoint of a run, by default the newest.",
        "tune": "Find a batch size or a learning rate; nothing is set.",
    },
    "Projects of components, with a config file in runs/NAME": {
        "check": "Check a run's components before it is trained.",
        "run": "Train, export and evaluate a run of components.",
    },
    "Projects of flows, with tasks as classes": {
        "flow": "Run a task of a flow: fetch, prepare, train, log.",
        "catalog": "List the data of a flow project, or check that it exists.",
    },
    "Any of these": {
        "new": "Create a project: config, data, code, tests and a sample.",
        "sweep": "Try many values; run again, it resumes.",
        "submit": "Run in the background, on Slurm or on Ray.",
        "launch": "Run a command; restart it when it dies.",
    },
    "Runs that exist, however they were trained": {
        "runs": "List runs, show, compare or remove them.",
        "ui": "Show a project's runs in MLflow and TensorBoard.",
        "report": "Write an HTML report: curves, errors, the worst samples.",
        "predict": "Predict new data with a trained model.",
        "generate": "Let a trained language model continue texts.",
        "export": "Write the model of a run for others to load.",
        "reproduce": "Repeat a run from its record, and compare.",
    },
    "Tools": {
        "doctor": "Check this machine: backends, extras, disk.",
        "records": "Write TFRecord files, or inspect them.",
        "bct": "Backward-compatible training: compare embedding models.",
    },
}
"""The commands as `everstep --help` shows them: what they are for, and the first line of the help of each."""

COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
"""Each command's name, which is also its module's, and the first line of its help."""


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
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:11}", summary) for name, summary in group.items()])  # one width for all

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that `args` name, from its module, and the arguments left for it."""
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else placeholder, rest


def new_app(**settings: Any) -> typer.Typer:
    """Returns an empty typer application with this project's settings."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **settings)


def load(name: str) -> Any:
    """Imports a command's module; returns the command in its `app`."""
    command = typer.main.get_command(importlib.import_module(f"everstep.cli.{name}").app)
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


for _name, _summary in COMMANDS.items():
    app.command(_name, help=_summary)(lambda: None)
