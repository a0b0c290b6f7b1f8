"""What a run has left on disk for a comparison: its record, configuration, logged numbers and weights."""

import contextlib
import csv
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from everstep.checkpoint import CHECKPOINTS, Damaged, arrays, base, complete_checkpoints, weights_digest
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.run import CODE_DIFF, Record, damage, layouts, read, read_requirements, trained_config
from everstep.types import CLOCKS

Numbers = dict[int, dict[str, str]]
"""The rows of `history.csv` by step: names with their numbers, as text."""

_TIMES = ("_seconds", "_per_second")  # suffixes of measured times, which differ between any two runs


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A run as it is on disk.

    Attributes:
      directory: The run directory.
      record: The content of `run.json`; with all packages under `environment.installed`, if they are known.
      config: The configuration that the run was trained with, as nested dictionaries.
      numbers: Every logged number.
    """

    directory: Path
    record: Record
    config: dict[str, Any]
    numbers: Numbers

    def steps(self) -> list[int]:
        """Returns the steps whose weights are known: those with a checkpoint or a digest in the record."""
        saved = complete_checkpoints(self._checkpoints)
        ended = [self.record["step"]] if self.record["weights_digest"] else []
        return sorted({*saved, *ended, *map(int, self._recorded)})

    def weights(self, step: int) -> str | None:
        """Returns the digest of the weights after a step; None if it is unknown."""
        if self.record["weights_digest"] and step == self.record["step"]:
            return str(self.record["weights_digest"])
        digest = self._recorded.get(str(step))
        return str(digest) if digest else self.saved_weights(step)

    def saved_weights(self, step: int) -> str | None:
        """Returns the digest of the weights in an undamaged checkpoint; None if there is none."""
        path = complete_checkpoints(self._checkpoints).get(step)
        if path is None:
            return None
        try:
            on = base.verify(path).base
            if on is not None and on.name:  # the rest of the weights is not in the run
                return None
            return weights_digest(arrays.read(path)[0])
        except (Damaged, UsageError, base.MissingBase, OSError):
            return None

    def code_changes(self) -> Path | None:
        """Returns the patch between the commit and the run's code; None if it is missing, or was modified."""
        path = self.directory / CODE_DIFF
        kept = path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()
        return path if kept and kept == self.record["code"].get("changes") else None

    @property
    def _checkpoints(self) -> Path:
        return self.directory / CHECKPOINTS

    @property
    def _recorded(self) -> dict[str, Any]:
        """The digests of earlier steps in the record, by step."""
        states = self.record.get("states")
        return {name: found for name, found in states.items() if name.isdecimal()} if isinstance(states, dict) else {}


def examine(directory: Path) -> Evidence:
    """Reads a run directory.

    Raises:
      UsageError: It is not a run directory, or its configuration is missing.
    """
    record, directory = read(directory), directory.absolute()  # Orbax needs absolute paths
    if wrong := damage(record):
        raise UsageError(f"is damaged: {wrong} is missing or has the wrong type", key=str(directory / "run.json"))
    packages = read_requirements(directory)
    record["environment"] = {**record["environment"], **({"installed": packages} if packages else {})}
    return Evidence(directory, record, _config(directory), _numbers(directory / "history.csv", record))


def _config(directory: Path) -> dict[str, Any]:
    """Returns the configuration of the newest checkpoint: `config.yaml` may have been edited since."""
    for path in reversed(complete_checkpoints(directory / CHECKPOINTS).values()):
        try:
            text = trained_config(arrays.read_meta(path))
            return dict(dialect.load(text))
        except Exception:  # Orbax raises many kinds of errors; config.yaml has it, too
            continue
    return stored_config(directory / "config.yaml")


def stored_config(path: Path) -> dict[str, Any]:
    """Returns the values in a configuration file of a run.

    Raises:
      UsageError: It is missing, or not a configuration.
    """
    try:
        tree = dialect.load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the configuration cannot be read: {reason}", key=str(path)) from None
    if not isinstance(tree, dict):
        remedy = "restore the file that the run was trained with"
        raise UsageError("the configuration is empty", key=str(path), remedy=remedy)
    return tree


def _numbers(path: Path, record: Record) -> Numbers:
    """Returns the rows of the history; the last one also gets the numbers of a test, which are only in the record."""
    found = {int(row["step"]): {name: cell for name, cell in row.items() if _counts(name, cell)} for row in _rows(path)}
    tested = {name: repr(value) for name, value in record["metrics"].get("test", {}).items()}
    for layout in layouts():
        tested |= _logged(path.with_name(layout.logged)) if layout.logged else {}
    if tested:
        found[record["step"]] = {**found.get(record["step"], {}), **tested}
    return found


def _logged(path: Path) -> dict[str, str]:
    """Returns the numbers that a task logged itself, at steps of its own."""
    found = {}
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):  # a line that a kill has truncated
            step, name, value = json.loads(line)
            if _counts(name, value):
                found[f"{name} (logged at {step})"] = value
    return found


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [row for row in csv.DictReader(file) if (row.get("step") or "").isdecimal()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the logged numbers cannot be read: {error}", key=str(path)) from error


def _counts(name: str | None, cell: str | None) -> bool:
    return bool(name and cell) and name not in ("step", *CLOCKS) and not str(name).endswith(_TIMES)
