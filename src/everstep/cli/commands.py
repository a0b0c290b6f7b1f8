"""The table of commands: those of the core, and those that companions and other packages register.

`everstep --help` prints this table and imports the module of none of them, which keeps it fast.
"""

import difflib
import importlib
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from everstep import __version__
from everstep.cli.command import Command, experiment_keys, is_script, new_app, words_for
from everstep.entry_points import entry_points, missing_companions
from everstep.errors import UsageError

ENTRY_POINTS = "everstep.commands"
"""The group of the entry points: the name of each is that of a command."""

START = "Start with these"
EXPERIMENTS = "Registered experiments"
RUNS = "Trained runs"
MORE_RUNS = "Many runs, and other machines"
TOOLS = "Tools"
"""Headings of `everstep --help`. What companies and teams share comes after what one person begins with."""

_FIRST, _LAST = (START, EXPERIMENTS, RUNS, MORE_RUNS), (TOOLS,)

_CORE = {
    "train": Command(START, "Train an experiment; run again, it resumes.", "everstep.cli.train", experiment_keys, True),
    "runs": Command(
        START,
        "List runs, show, compare or remove them.",
        "everstep.cli.runs",
        also_typed={
            **words_for("everstep runs", "list ls ps history"),
            **words_for("everstep runs show RUN", "show info status describe get inspect"),
            **words_for("everstep runs compare RUN RUN", "compare diff"),
            **words_for("everstep runs rm RUN", "rm remove delete del clean"),
            **words_for("everstep runs watch RUN", "watch log logs tail follow monitor attach progress"),
            **words_for("everstep runs sync RUN", "sync upload push"),
        },
    ),
    "report": Command(
        START,
        "Write an HTML report: curves, errors, the worst samples.",
        "everstep.cli.report",
        also_typed=words_for("everstep report RUN", "plot plots curves html summary visualize"),
    ),
    "predict": Command(
        START,
        "Predict new data with a trained model.",
        "everstep.cli.predict",
        also_typed=words_for(
            "everstep predict RUN --input new.csv --output answers.csv", "infer inference classify apply"
        ),
    ),
    "doctor": Command(
        START,
        "Check this machine: backends, extras, disk.",
        "everstep.cli.doctor",
        also_typed=words_for("everstep doctor", "env diagnose devices gpu setup install backends"),
    ),
    "experiments": Command(
        EXPERIMENTS,
        "List the registered experiments.",
        "everstep.cli.experiments",
        also_typed=words_for("everstep experiments", "models tasks examples zoo"),
    ),
    "config": Command(
        EXPERIMENTS,
        "Print an experiment's resolved configuration.",
        "everstep.cli.config",
        experiment_keys,
        also_typed=words_for("everstep config EXPERIMENT", "params settings schema keys"),
    ),
    "eval": Command(
        RUNS,
        "Evaluate a run, or its model on other data.",
        "everstep.cli.eval",
        experiment_keys,
        trains_as_several=True,
        also_typed=words_for("everstep eval RUN", "evaluate test validate score"),
    ),
    "export": Command(
        RUNS,
        "Write the model of a run for others to load.",
        "everstep.cli.export",
        also_typed=words_for("everstep export RUN", "serve save convert deploy onnx"),
    ),
    "ui": Command(
        RUNS,
        "Show runs in a browser: a live table, curves, reports.",
        "everstep.cli.ui",
        also_typed=words_for("everstep ui", "dashboard web open browse"),
    ),
    "reproduce": Command(
        RUNS,
        "Repeat a run from its record, and compare.",
        "everstep.cli.reproduce",
        also_typed=words_for("everstep reproduce RUN", "repeat replay rerun verify"),
    ),
    "fork": Command(
        RUNS,
        "Start a new run from the exact state of another one.",
        "everstep.cli.fork",
        also_typed=words_for("everstep fork RUN --at STEP", "branch continue-from warm-start"),
    ),
    "generate": Command(
        RUNS,
        "Let a trained language model continue texts.",
        "everstep.cli.generate",
        also_typed=words_for("everstep generate RUN --prompt TEXT", "chat complete sample prompt"),
    ),
    "launch": Command(
        MORE_RUNS,
        "Run a command; restart it when it dies.",
        "everstep.cli.launch",
        also_typed=words_for("everstep launch --processes 2 EXPERIMENT", "torchrun distribute distributed"),
    ),
    "records": Command(
        TOOLS,
        "Write TFRecord files, or inspect them.",
        "everstep.cli.records",
        also_typed=words_for("everstep records write DIR", "tfrecord tfrecords"),
    ),
}

_RESUMES = "The same command or script again resumes its run: everstep train EXPERIMENT, or python train.py"
_STOPS = "Ctrl-C ends a run after a save, and so does kill with its process id"
_NO_COMMANDS = {
    "fit": "everstep.fit(model, x, y) is a function for your script, which needs no command: python train.py",
    **dict.fromkeys(("resume", "restart", "continue", "restore"), _RESUMES),
    **dict.fromkeys(("stop", "kill", "cancel", "pause"), _STOPS),
    "tensorboard": "TensorBoard has a command of its own: tensorboard --logdir runs",
    "mlflow": "MLflow has a command of its own: mlflow ui",
    "version": "Type: everstep --version",
    "help": "Type: everstep --help, or everstep train --help",
    "completion": "Type: everstep --install-completion",
}
"""What to do instead, for words that no command is meant by."""


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
    shown: dict[str, dict[str, str]] = {title: {} for title in _FIRST}
    for name, command in {**_CORE, **COMMANDS}.items():
        shown.setdefault(command.group, {})[name] = command.summary
    return {title: shown[title] for title in [*(title for title in shown if title not in _LAST), *_LAST]}


def command_meant(word: str) -> str:
    """Returns the command line that people mean by a word that is no command; empty if it is known for none."""
    return next((command.also_typed[word] for command in COMMANDS.values() if word in command.also_typed), "")


def instead_of(word: str) -> str:
    """Returns a sentence on what to do instead of a command that does not exist; empty if nobody can know."""
    if is_script(word):
        return f"A script is run with Python: python {word}"
    if word in _NO_COMMANDS:
        return _NO_COMMANDS[word]
    if meant := command_meant(word):
        return f"Type: {meant}"
    if close := difflib.get_close_matches(word, COMMANDS):
        return f"Did you mean {' or '.join(map(repr, close))}?"
    # An experiment was named without the command.
    return f"Type: everstep train {word}" if "/" in word and not Path(word).exists() else ""


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

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands, which people look for, and after them the options."""
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            formatter.write_dl([record for one in self.get_params(ctx) if (record := one.get_help_record(ctx))])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands in their groups, without rich, which takes long to load."""
        for title, group in groups().items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:11}", summary) for name, summary in group.items()])  # one width for all

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that `args` name, from its module, and the arguments left for it.

        Raises:
          UsageError: There is no such command, or it is one of a companion that is not there; says what to do instead.
        """
        companion = missing_companions(ENTRY_POINTS).get(args[0])
        if companion is not None and args[0] not in COMMANDS:
            raise UsageError(f"everstep {args[0]} belongs to {companion}, which this installation is without")
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            hint = instead_of(args[0])
            raise UsageError(f"No such command {args[0]!r}{f'. {hint}' if hint else ''} (see: everstep --help)")
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else placeholder, rest


def load(name: str) -> Any:
    """Imports a command's module; returns the command in its `app`."""
    command = typer.main.get_command(importlib.import_module(COMMANDS[name].module).app)
    command.name = name
    return command


app = new_app(add_completion=True, cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
"""The command line's root."""


@app.callback(invoke_without_command=True, epilog="Example: everstep train mnist/quick")
def everstep(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show every frame of errors.")] = False,
) -> None:
    """Train Keras 3 models and never lose a step.

    A script that calls everstep.fit needs no command: python train.py
    """
    if version:
        print(f"everstep {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


for _name, _command in COMMANDS.items():
    app.command(_name, help=_command.summary)(lambda: None)
