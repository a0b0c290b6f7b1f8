"""What a check found: fine, wrong, doubtful, or not looked at."""

import dataclasses
from typing import Literal

Status = Literal["ok", "FAIL", "warn", "skip"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One line.

    Attributes:
      status: "ok", "FAIL", "warn" for what may be meant that way, "skip" for what was not looked at.
      component: Whose check it is: a component, `config` or `export`.
      check: The name of the check.
      text: What was found, in one line.
    """

    status: Status
    component: str
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.status:<4} {self.component}: {self.text}"


class Doubt(Exception):
    """What was found may be meant that way; a person should look at it."""


class NotNeeded(Exception):
    """There is nothing to look at; why."""
