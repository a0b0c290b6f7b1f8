"""Errors as data: which key, the value received, why it is wrong, what to do, where the value came from.

`UsageError` is bad input: the command line prints it and exits with 2, and nothing is left behind. `TrainingError` is a
run that started and failed: exit code 1, and what the run has saved is kept; `BadDataError` is one whose data is the
cause, with the exit code 2. All hold `Problem`s, and `Problem.__str__` is the only place that turns one into a
sentence:

    raise UsageError("must be at least 1", key="trainer.epochs", received=0)
    # trainer.epochs: received 0, must be at least 1

A reason or remedy that mentions another key has a placeholder for it:

    raise TrainingError(
        "the data ended after step 7", remedy="repeat it, or lower {steps}", mentions={"steps": "trainer.train_steps"}
    )
    # the data ended after step 7: repeat it, or lower trainer.train_steps

So an entry point whose users know a key by another name only passes its names:

    with renamed_keys({"trainer.train_steps": "epochs", "task.train_data": "train_ds"}):
        run_experiment(…)  # the data ended after step 7: repeat it, or lower epochs

Where its users have no such key at all, the name is None: for a whole section, `{"runtime": None}`. A remedy that is
only possible in some entry points is a tuple of alternatives. Those that mention a key without a name are left out:

    remedy=("check the data", "set {trials} to skip batches"), mentions={"trials": "trainer.recovery_max_trials"}
    # check the data, or set trainer.recovery_max_trials to skip batches
    # check the data                                                        with {"trainer": None}

A warning is told in the same way: `logger.warning("%s", warning_text(…))`.
"""

import contextlib
import contextvars
import dataclasses
import difflib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.entry_points import companion, is_missing
from everstep.extras import install_command
from everstep.log_lines import without_colours

_AROUND = re.compile(r"^Exception encountered when calling \S+\. |Arguments received by .*$")


class _Nothing:
    """The type of `NOTHING`."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()
"""Stands for a value that was not passed; None may be a value that was."""

KeyNames = Mapping[str, str | None]
"""What the users of an entry point call the keys of a configuration; None for what they cannot set."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
      key: What the user would change: a dotted key such as `trainer.train_steps` or `layers[0].units`, an argument
        such as `epochs`, an option such as `--mode`; empty where nothing has a name.
      reason: What is wrong with it, or what would be right.
      origin: The file and line, the override or the option that the value came from, where that is known.
      received: The value; left out of the sentence where there is none.
      remedy: What to do; a tuple of alternatives, where some need keys that not every entry point has.
      mentions: The keys that reason and remedy mention, by placeholder: `{"steps": "trainer.train_steps"}` for
        `lower {steps}`. Other braces are plain text.
    """

    key: str
    reason: str
    origin: str = ""
    received: Any = NOTHING
    remedy: str | tuple[str, ...] = ""
    mentions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def under(self, key: str) -> "Problem":
        """Returns the same problem as seen from the config or section that holds this key at `key`."""
        return dataclasses.replace(self, key=join(key, self.key))

    def renamed(self, names: KeyNames) -> "Problem":
        """Returns the same problem with the user's names for its key and for those that it mentions."""
        mentions = {name: renamed_key(key, names) for name, key in self.mentions.items()}
        remedy = self.remedy
        if isinstance(remedy, tuple):
            lacking = [f"{{{name}}}" for name, key in self.mentions.items() if lacks(key, names)]
            remedy = tuple(part for part in remedy if not any(name in part for name in lacking))
        return dataclasses.replace(self, key=renamed_key(self.key, names), remedy=remedy, mentions=mentions)

    def fill(self, text: str | tuple[str, ...]) -> str:
        """Returns the reason or the remedy with the mentioned keys in place of their placeholders."""
        filled = text if isinstance(text, str) else ", or ".join(text)
        for name, key in self.mentions.items():
            filled = filled.replace(f"{{{name}}}", key)
        return filled

    def __str__(self) -> str:
        received = "" if self.received is NOTHING else f"received {show(self.received)}"
        line = ", ".join(part for part in (received, self.fill(self.reason)) if part)
        line = ": ".join(part for part in (self.key, line, self.fill(self.remedy)) if part)
        return redaction.text(without_colours(f"{line} (from {self.origin})" if self.origin else line))


class _Reported(Exception):
    """An error that holds problems; its text is theirs, one per line.

    Attributes:
      announced: Whether another process of the same run prints it, so that this one need not.
      exit_code: That of a program which it ends.
    """

    announced = False
    exit_code: int

    def __init__(
        self,
        reason: str | Problem | Sequence[Problem] = "",
        *,
        key: str = "",
        received: Any = NOTHING,
        remedy: str | tuple[str, ...] = "",
        origin: str = "",
        mentions: Mapping[str, str] | None = None,
        owner: str = "",
    ) -> None:
        """Takes the parts of one problem, or one or several `Problem`s.

        Args:
          reason: What is wrong; or a problem, or several, without the arguments below.
          key: What the user would change.
          received: The value that is wrong.
          remedy: What to do, or a tuple of alternatives; see `Problem`.
          origin: Where the value came from.
          mentions: The keys that reason and remedy mention, by placeholder; see `Problem`.
          owner: Shown before each key: the class of a config that is not part of another.
        """
        if isinstance(reason, str):
            reason = Problem(key, reason, origin, received, remedy, mentions or {})
        self.problems = (reason,) if isinstance(reason, Problem) else tuple(reason)
        super().__init__("\n".join(str(problem.under(owner)) for problem in self.problems))

    @property
    def key(self) -> str:
        """The key of the first problem; see `Problem`."""
        return self.problems[0].key

    @property
    def reason(self) -> str:
        """What is wrong, of the first problem, as it is shown."""
        return self.problems[0].fill(self.problems[0].reason)

    @property
    def received(self) -> Any:
        """The value of the first problem, `NOTHING` where there was none."""
        return self.problems[0].received

    @property
    def remedy(self) -> str:
        """What to do about the first problem, as it is shown."""
        return self.problems[0].fill(self.problems[0].remedy)

    @property
    def origin(self) -> str:
        """Where the value of the first problem came from."""
        return self.problems[0].origin

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


class UsageError(_Reported, ValueError):
    """The request cannot be carried out as written; nothing was done."""

    exit_code = 2


class TrainingError(_Reported, RuntimeError):
    """The run started and cannot continue."""

    exit_code = 1


class DivergedError(TrainingError):
    """The loss or the state is not finite, or the loss is too high, and training may not be rolled back."""


class BadDataError(TrainingError):
    """The run started and cannot continue with its data: if it is started again, it will stop at the same place."""

    exit_code = 2


def problems_under(key: str, error: Exception) -> list[Problem]:
    """Returns the problems of an error as seen from the config or section that holds the failing part at `key`."""
    if isinstance(error, UsageError):
        return [problem.under(key) for problem in error.problems]
    return [Problem(key, str(error))]


_active_names: contextvars.ContextVar[tuple[KeyNames, ...]] = contextvars.ContextVar("everstep_key_names", default=())


@contextlib.contextmanager
def renamed_keys(names: KeyNames) -> Iterator[None]:
    """Inside the block errors and warnings use the user's names for keys: `{"task.train_data": "train_ds"}`."""
    token = _active_names.set((names, *_active_names.get()))
    try:
        yield
    except (UsageError, TrainingError) as error:
        problems = tuple(problem.renamed(names) for problem in error.problems)
        if problems == error.problems:
            raise
        renamed = type(error)(problems)
        renamed.announced = error.announced
        raise renamed.with_traceback(error.__traceback__) from error.__cause__  # the same error, in other words
    finally:
        _active_names.reset(token)


def warning_text(
    reason: str, *, key: str = "", remedy: str | tuple[str, ...] = "", mentions: Mapping[str, str] | None = None
) -> str:
    """Returns a warning in the words of the entry point that is running; the arguments are those of `Problem`."""
    return str(_in_users_words(Problem(key, reason, remedy=remedy, mentions=mentions or {})))


def error_text(error: BaseException) -> str:
    """Returns an error's message in the words of the entry point that is running, as its user will see it."""
    if not isinstance(error, UsageError | TrainingError):
        return str(error)
    return "\n".join(str(_in_users_words(problem)) for problem in error.problems)


def _in_users_words(problem: Problem) -> Problem:
    for names in _active_names.get():
        problem = problem.renamed(names)
    return problem


def renamed_key(key: str, names: KeyNames) -> str:
    """Returns the user's name for a key: its own, or that of the section which holds it, with the rest of the key.

    A key that users cannot set has no other name than its own.
    """
    section = _named_section(key, names)
    name = None if section is None else names[section]
    return key if section is None or name is None else join(name, key[len(section) :].removeprefix("."))


def lacks(key: str, names: KeyNames) -> bool:
    """Whether the users of an entry point cannot set a key."""
    section = _named_section(key, names)
    return section is not None and names[section] is None


def _named_section(key: str, names: KeyNames) -> str | None:
    """Returns the longest part of a key, from its beginning, that is in `names`."""
    for length in range(len(key), 0, -1):
        if key[:length] in names and (length == len(key) or key[length] in ".["):
            return key[:length]
    return None


def join(path: str, key: str) -> str:
    """Returns `path.key`; an index such as `[0]` is attached without a dot."""
    if not path or not key:
        return path or key
    return f"{path}{key}" if key.startswith("[") else f"{path}.{key}"


def show(value: Any, limit: int = 120) -> str:
    """Returns a value as an error shows it: its repr without secrets, shortened in the middle when long.

    Both ends are kept: a path begins with where it is, and ends with what it is.
    """
    text = redaction.text(repr(redaction.tree(value)))
    if len(text) <= limit:
        return text
    end = limit // 2
    return f"{text[: limit - 1 - end]}…{text[-end:]}"


def missing_extra(package: str, extra: str, purpose: str) -> UsageError:
    """Returns the error for an optional package that is not installed.

    Example: `raise missing_extra("tensorflow", "tensorflow", "backend 'tensorflow'")`.
    """
    return UsageError(f"{purpose} needs the package {package!r}, which is not installed", remedy=install_command(extra))


def missing_companion(error: ImportError, key: str = "") -> UsageError | None:
    """Returns the error for a companion of this package whose folder is not there; None for any other module.

    Args:
      error: What the import raised.
      key: What was asked for.
    """
    if not (error.name or "").startswith("everstep.") or not is_missing(str(error.name)):
        return None
    return UsageError(f"needs {companion(str(error.name))}, which this installation is without", key=key)


def kind_of(value: Any) -> str:
    """Returns the type of a value in a few words: `Sequential`, `the class Model`, `None`, `tuple (Model, str)`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    if isinstance(value, tuple | list):
        inside = [type(item).__name__ for item in value[:4]]
        return f"{name} ({', '.join(inside)}{', …' if len(value) > len(inside) else ''})" if inside else f"empty {name}"
    return name


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint for an unknown name: the nearest known ones, or up to twelve of all."""
    names = sorted(known)
    if hint := did_you_mean(name, names):
        return hint
    if not names:
        return "none are known"
    listed = ", ".join(repr(n) for n in names[:12])
    return f"known: {listed}{', …' if len(names) > 12 else ''}"


def did_you_mean(name: str, known: Iterable[str], most: int = 3, similarity: float = 0.55) -> str:
    """Returns a question with the known names that a name resembles, the most similar first; empty if there are none.

    Args:
      name: The name that was given.
      known: The names that exist.
      most: How many names the question has at most.
      similarity: From 0, which accepts any name, to 1, which accepts only the same name.
    """
    close = difflib.get_close_matches(name, list(known), n=most, cutoff=similarity)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def plain_text(error: BaseException) -> str:
    """Returns an exception's message in one line, without the colours that Keras gives to shapes and layers."""
    return " ".join(without_colours(str(error)).split())


def cause_in_keras(error: BaseException) -> str:
    """Returns why a call of a Keras model or layer failed, in one line.

    Keras puts the names of the layers around the reason, and the arguments after it: whole arrays of the user's data.
    """
    return _AROUND.sub("", plain_text(error)).strip().rstrip(".")


def wants_traceback() -> bool:
    """Whether errors show where in the libraries they come from: `EVERSTEP_TRACEBACK=1`."""
    return os.environ.get("EVERSTEP_TRACEBACK", "") not in ("", "0")


def own_frames(error: BaseException, below: str = "") -> list[traceback.FrameSummary]:
    """Returns the frames of a traceback that are in the user's own code: not everstep's, a library's or Python's.

    Args:
      error: The error whose traceback is read.
      below: Leaves out all frames before the first one in this file.
    """
    frames = list(traceback.extract_tb(error.__traceback__))
    first = next((index for index, frame in enumerate(frames) if frame.filename == below), 0)
    return [frame for frame in frames[first:] if is_own_file(frame.filename)]


def is_own_file(file: str) -> bool:
    """Returns whether a file with code is the user's own: not everstep's, a library's or Python's."""
    if file.startswith("<"):
        return False
    path, others = Path(file).resolve(), [Path(__file__).parent, *_library_folders()]
    is_library = any(path.is_relative_to(folder.resolve()) for folder in others) or "site-packages" in path.parts
    return not is_library


def _library_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths[name]) for name in ("stdlib", "purelib", "platlib", "scripts")]
