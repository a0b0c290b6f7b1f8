"""`everstep`: parses the command line, runs one command, and turns its outcome into an exit code."""

import importlib
import os
import sys
from collections.abc import Sequence

import typer

from everstep import redaction
from everstep.cli import declined_flags
from everstep.cli.commands import Stopped, app
from everstep.cli.spelling import normalised
from everstep.errors import TrainingError, UsageError
from everstep.run.ending import exit_code, without_option
from everstep.run.signals import Interrupted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, by default this process's; returns the exit code."""
    command = typer.main.get_command(app)
    words = without_option(normalised(sys.argv[1:] if arguments is None else arguments))
    _keep_secrets(words)
    try:
        return int(command.main(args=words, prog_name="everstep", standalone_mode=False, obj=words) or 0)
    except (Exception, KeyboardInterrupt, Interrupted) as error:
        return _report(error, words)


def _keep_secrets(words: Sequence[str]) -> None:
    """Learns the secrets in the command line and in the environment before anything can print or log them."""
    redaction.guard_process()
    redaction.learn(words)
    # A password that is a plain word, as local databases have, would black out every message with that word.
    redaction.learn({name: value for name, value in os.environ.items() if not value.isalpha()})


def _report(error: BaseException, words: Sequence[str]) -> int:
    if isinstance(error, Stopped | typer.Abort):
        error = error.interrupt if isinstance(error, Stopped) else KeyboardInterrupt()
    mistake = "" if isinstance(error, UsageError | TrainingError) else _command_line_mistake(error, words)
    return exit_code(UsageError(mistake) if mistake else error)


def _command_line_mistake(error: BaseException, words: Sequence[str]) -> str:
    """Returns what the parser found wrong; empty for any other error.

    Its exceptions are told by what they can do: which package they live in depends on typer's version.
    """
    spell = getattr(error, "format_message", None)
    if spell is None:
        return ""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "everstep"
    found = spell().rstrip(".")
    if option := getattr(error, "option_name", None) or "":
        keys = importlib.import_module("everstep.cli.keys_as_options")  # loads what --help does without
        reason = declined_flags.reason(option) or keys.hint(option, words)
        found = f"No such option: {option}; {reason}" if reason else found
    return f"{found} (see: {path} --help)"
