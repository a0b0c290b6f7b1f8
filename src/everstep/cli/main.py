"""`everstep`: parses the command line, runs one command, and turns its outcome into an exit code.

0 done, 1 failed, 2 bad input, 130 interrupted, 143 asked to end (or the requeue exit code). Bad input and failed runs
are one text on standard error; a traceback means a bug, in everstep or in the user's code, and is never hidden.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from everstep import redaction
from everstep.cli import declined_flags
from everstep.cli.commands import app
from everstep.cli.spelling import normalised
from everstep.errors import TrainingError, UsageError
from everstep.run.signals import Interrupted


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, by default this process's; returns the exit code."""
    command = typer.main.get_command(app)
    words = normalised(sys.argv[1:] if arguments is None else arguments)
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
    if isinstance(error, Interrupted):
        print(f"everstep: {error.reason}: {_what_is_left(error)}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        print("everstep: interrupted; the same command goes on from the newest checkpoint", file=sys.stderr)
        return 130
    expected = isinstance(error, UsageError | TrainingError)
    text = str(error) if expected else _command_line_mistake(error, words)
    if not text:
        print(redaction.text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        return 1
    print(f"everstep: error: {redaction.text(text)}", file=sys.stderr)
    return 1 if isinstance(error, TrainingError) else 2


def _what_is_left(interrupted: Interrupted) -> str:
    if interrupted.saved is None:
        return "nothing is saved yet; the same command starts anew"
    return f"the state is saved at step {interrupted.saved}; the same command goes on from there"


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
