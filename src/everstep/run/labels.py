"""What people call a run: its name, tags and notes. They say nothing about what it computes.

A resumed run may have others: each call replaces what it passes, and keeps the rest.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Labels:
    """What a call says about its run.

    Attributes:
      name: The run's name; empty to keep the recorded one.
      default_name: The name of a new run for which none was passed.
      tags: Texts by name, empty ones for tags that are words; None to keep the recorded ones.
      notes: Any text; None to keep the recorded one.
    """

    name: str = ""
    default_name: str = ""
    tags: Mapping[str, str] | None = None
    notes: str | None = None

    def entries(self, record: Mapping[str, Any], experiment: str) -> dict[str, Any]:
        """Returns the entries of `run.json`.

        Args:
          record: The run's record so far.
          experiment: The name of the experiment. Empty for a run of no experiment: trackers group it under the first
            name that it had, so that a resumed run stays where it is.
        """
        name = experiment or self.name or record["name"] or self.default_name
        return {
            "experiment": experiment or record["experiment"] or name,
            "name": name,
            "tags": dict(record["tags"] if self.tags is None else self.tags),
            "notes": record["notes"] if self.notes is None else self.notes,
        }


def tag_words(tags: Mapping[str, str]) -> list[str]:
    """Returns tags as words: `baseline`, `team: vision`."""
    return [f"{name}: {value}" if value else name for name, value in tags.items()]
