"""What is wrong in a configuration: every finding at once, each under its full key path."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from everstep import redaction
from everstep.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Problem:
    """One finding.

    Attributes:
      path: Dotted key path from the config at hand, such as `trainer.train_steps` or `layers[0].units`.
      text: What is wrong and what would be right.
      origin: The file or override the value came from, where that is known.
    """

    path: str
    text: str
    origin: str = ""

    def under(self, path: str) -> "Problem":
        """Returns the same finding as seen from a config that holds this one at `path`."""
        return dataclasses.replace(self, path=join(path, self.path))

    def __str__(self) -> str:
        line = f"{self.path}: {self.text}" if self.path else self.text
        return redaction.text(f"{line} (from {self.origin})" if self.origin else line)


class ConfigError(UsageError):
    """A configuration that cannot be used; the message has one line per problem.

    Attributes:
      problems: The findings, so that an outer config can report them under its own key path.
    """

    def __init__(self, problems: Sequence[Problem], owner: str = "") -> None:
        """Keeps the problems and spells the message.

        Args:
          problems: What was found.
          owner: Name of the config class, shown before each path where no outer config is known.
        """
        self.problems = list(problems)
        super().__init__("\n".join(str(p.under(owner)) if owner else str(p) for p in self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,)


def problems_under(path: str, error: Exception) -> list[Problem]:
    """Returns what `error` found, as seen from the config that holds the failing part at `path`."""
    if isinstance(error, ConfigError):
        return [problem.under(path) for problem in error.problems]
    return [Problem(path, str(error))]


def join(path: str, key: str) -> str:
    """Returns `path.key`; an index such as `[0]` is attached without a dot."""
    if not path or not key:
        return path or key
    return f"{path}{key}" if key.startswith("[") else f"{path}.{key}"


def show(value: Any, limit: int = 120) -> str:
    """Returns a value as an error message shows it: its repr without secrets, cut when long."""
    text = redaction.text(repr(redaction.tree(value)))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
