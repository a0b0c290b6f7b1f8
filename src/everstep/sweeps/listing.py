"""Sweeps below a directory, for commands that list and compare runs; read from `trials.json`, without Optuna."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.run import register_run_groups
from everstep.sweeps import FILE, TABLE
from everstep.tracking import value_text


@dataclasses.dataclass(frozen=True)
class ListedSweep:
    """One sweep.

    Attributes:
      directory: Its directory.
      table: The content of `trials.json`.
    """

    directory: Path
    table: Mapping[str, Any]

    @property
    def places(self) -> dict[Path, int]:
        """The run directories of the trials, with their numbers."""
        return {(self.directory / row["directory"]).resolve(): int(row["number"]) for row in self.table["trials"]}

    def best(self, count: int) -> list[Path]:
        """Returns the run directories of the best trials."""
        sign = 1.0 if self.table["modes"][0] == "min" else -1.0
        done = [row for row in self.table["trials"] if row["value"] is not None]
        ranked = sorted(done, key=lambda row: (sign * row["value"], row["number"]))
        return list(dict.fromkeys(self.directory / row["directory"] for row in ranked))[:count]

    def line(self) -> str:
        """Returns the sweep on one line."""
        table, best = self.table, ""
        if table["best"] is not None:
            row = next(row for row in table["trials"] if row["number"] == table["best"])
            name = next(iter(table["metrics"]), "") or "loss"  # earlier versions wrote an empty name
            best = f", best {name}={value_text(row['value'], 6)} (trial {row['number']})"
        return f"sweep {self.directory}: {table['finished']} of {table['wanted']} trials of {table['target']}{best}"


def find_sweeps(root: Path) -> Iterator[ListedSweep]:
    """Yields the sweeps at or below a directory; there is none inside of a run or of another sweep."""
    for directory, names, files in os.walk(root):
        names[:] = [] if "run.json" in files or FILE in files else sorted(name for name in names if name[0] != ".")
        if FILE in files and (found := read_sweep(Path(directory))) is not None:
            yield found


def read_sweep(directory: Path) -> ListedSweep | None:
    """Returns the sweep in a directory; None if there is none, or no trial has begun."""
    with contextlib.suppress(UsageError, KeyError, TypeError):
        table = storage.read_json(directory / TABLE) if (directory / FILE).is_file() else None
        if table and table["trials"] is not None:
            return ListedSweep(directory, table)
    return None


register_run_groups(read_sweep, find_sweeps)  # `everstep runs` lists sweeps, and compares their best trials
