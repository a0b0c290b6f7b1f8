"""`everstep`: parses the command line, runs one command, and turns its outcome into an exit code.

The exit codes, and what is printed with them, are in `run/exit_codes.py`.
"""

import difflib
import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from everstep import redaction
from everstep.cli import completion
from everstep.cli.commands import COMMANDS, CommandInterrupted, app
from everstep.entry_points import entry_points
from everstep.errors import TrainingError, UsageError, missing_companion
from everstep.gang import refuse_together
from everstep.log_lines import print_plain_lines
from everstep.run import Interrupted, exit_code, without_option

SPELLINGS = "everstep.command_lines"
"""The group of entry points for command lines of other programs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line, by default this process's; returns the exit code."""
    command = typer.main.get_command(app)
    completion.repair_zsh()
    given = sys.argv[1:] if arguments is None else arguments
    for spelling in _spellings():
        given = spelling.normalised(given)
    words = without_option(given)
    # Secrets in the command line and in the environment are learned before anything can print or log them.
    redaction.guard_process()
    print_plain_lines()
    redaction.learn(words)
    # A password that is a plain word, as local databases have, would black out every message with that word.
    redaction.learn({name: value for name, value in os.environ.items() if not value.isalpha()})
    try:
        return int(command.main(args=words, prog_name="everstep", standalone_mode=False, obj=words) or 0)
    except (Exception, KeyboardInterrupt, Interrupted) as error:
        raised = _as_raised(error, words)
        together = words[:1] and words[0] in COMMANDS and COMMANDS[words[0]].trains_as_several
        if isinstance(raised, UsageError) and together:
            return refuse_together(raised, lambda: exit_code(raised), os.environ)
        return exit_code(raised)


@functools.cache
def _spellings() -> list[Any]:
    """Returns the modules that know how other programs spell command lines.

    Each has `normalised(words)`, which returns the words as they are spelled here, and `why_declined(option)`, which
    returns why an option of these programs does not exist here; empty for one that they do not have, either.
    """
    return [point.load() for point in entry_points(SPELLINGS)]


def _as_raised(error: BaseException, words: Sequence[str]) -> BaseException:
    """Returns the error to report: Ctrl-C as itself, and what the parser found wrong as a `UsageError`."""
    if isinstance(error, CommandInterrupted):
        return error.interrupt
    if isinstance(error, typer.Abort):
        return KeyboardInterrupt()
    if isinstance(error, ModuleNotFoundError):
        return missing_companion(error, f"everstep {words[0]}" if words else "") or error
    # The parser's exceptions are known by what they can do: which package they live in depends on typer's version.
    spell = getattr(error, "format_message", None)
    if isinstance(error, UsageError | TrainingError) or spell is None:
        return error
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "everstep"
    found = spell().rstrip(".")
    if option := getattr(error, "option_name", None) or "":
        declined = next((why for spelling in _spellings() if (why := spelling.why_declined(option))), "")
        hint = declined or _options_like(option, error) or key_instead_of(option, words)
        found = f"No such option: {option}{f'; {hint}' if hint else ''}"
    elif (hasattr(error, "param_type") or "unexpected extra argument" in found) and (example := _example(context)):
        found = f"{found}; {example}"
    return UsageError(f"{found} (see: {path} --help)")


def _options_like(option: str, error: Any) -> str:
    """Returns a question with the options that the parser found to be like an unknown one."""
    close = difflib.get_close_matches(option, getattr(error, "possibilities", None) or [], cutoff=0.85)
    return f"did you mean {' or '.join(close)}?" if close else ""


def _example(context: Any) -> str:
    """Returns the first example that the help of a command has; empty if there is none."""
    lines = (getattr(context.command, "epilog", None) or "").splitlines() if context is not None else []
    return next((line.strip() for line in lines if line.startswith("Example: ")), "").replace("Example:", "example:")


def key_instead_of(option: str, words: Sequence[str]) -> str:
    """Returns what to write instead of `--epochs 5` where `trainer.epochs=5` is meant; empty if no key is like it.

    Args:
      option: The unknown option as it was given: `--epochs`.
      words: The whole command line.
    """
    command, *rest = words or ("",)
    name = option.lstrip("-")
    target = next((word for word in rest if not word.startswith("-") and "=" not in word), "")
    keys_like = COMMANDS[command].keys_like if command in COMMANDS else None
    keys = keys_like(name, target) if keys_like else []
    value = _value_of(option, words)
    return f"a value is written without dashes: {' or '.join(f'{key}={value}' for key in keys)}" if keys else ""


def _value_of(option: str, words: Sequence[str]) -> str:
    """Returns the value that follows an option, with or without `=`; `…` if there is none."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following if following and not following.startswith("-") else "…"
    return "…"
