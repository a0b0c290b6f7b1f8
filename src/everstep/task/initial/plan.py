"""What would be loaded, before anything is."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from everstep.task.initial.matching import Match
from everstep.task.initial.report import Report


@dataclasses.dataclass
class Plan:
    """A match, and how to carry it out while the file is open; `with` closes it.

    Attributes:
      report: What would be loaded.
      apply: Loads it: reads all of it first, so that what cannot be read changes nothing.
      open_files: What has to be closed in the end.
    """

    report: Report
    apply: Callable[[], None]
    open_files: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *error: Any) -> None:
        self.open_files.close()


def report_of(match: Match, path: Any, shown: Mapping[str, str] | None = None) -> Report:
    """Returns the report of a match.

    Args:
      match: The match.
      path: Where the arrays are.
      shown: How a key of the model is shown to a person, where it is not the name itself.
    """
    shown = shown or {}
    return Report(
        path=str(path),
        kind="",
        matched=tuple(shown.get(key, key) for key in match.pairs),
        missing=tuple(shown.get(key, key) for key in match.missing),
        mismatched=tuple(dataclasses.replace(one, name=shown.get(one.name, one.name)) for one in match.mismatched),
        unexpected=match.unexpected,
    )
