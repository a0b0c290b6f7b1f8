"""What a run has left that can be compared: its record, its configuration, its logged numbers, its weights."""

import contextlib
import csv
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from everstep.checkpoint import arrays, manifest
from everstep.checkpoint.manifest import Damaged
from everstep.config import dialect
from everstep.errors import UsageError
from everstep.run.digest import weights_digest
from everstep.run.environment import CODE_DIFF, read_requirements
from everstep.run.layouts import layouts
from everstep.run.record import Record, damage, read
from everstep.types import CLOCKS

Numbers = dict[int, dict[str, str]]
"""The rows of `history.csv` by step: a name with its number, as it is spelled there."""

_TIMES = ("_seconds", "_per_second")  # what the names of measured times end with: no two runs agree in them


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A run as it is on disk.

    Attributes:
      directory: Its run directory.
      record: Its `run.json`; with all packages under `environment.installed`, where they are known.
      config: The values of the configuration that it was trained with, as nested dictionaries.
      numbers: Every number that it logged.
    """

    directory: Path
    record: Record
    config: dict[str, Any]
    numbers: Numbers

    def steps(self) -> list[int]:
        """Returns the steps whose weights can be told: those with a checkpoint or a digest in the record."""
        saved = [int(path.parent.name) for path in self._checkpoints.glob(f"*/{manifest.NAME}") if _is_step(path)]
        ended = [self.record["step"]] if self.record["weights_digest"] else []
        return sorted({*saved, *ended, *map(int, self._noted)})

    def weights(self, step: int) -> str | None:
        """Returns the digest of the weights after a step; None where nobody knows it any more."""
        if self.record["weights_digest"] and step == self.record["step"]:
            return str(self.record["weights_digest"])
        noted = self._noted.get(str(step))
        return str(noted) if noted else self.saved_weights(step)

    def saved_weights(self, step: int) -> str | None:
        """Returns the digest of the weights in a checkpoint, every byte of which is as it was written; else None."""
        path = self._checkpoints / str(step)
        try:
            manifest.verify(path)
            return weights_digest(arrays.read(path)[0])
        except (Damaged, UsageError, OSError):
            return None

    def code_changes(self) -> Path | None:
        """Returns the patch that makes the run's code of its commit; None where it is gone, or not what it was."""
        path = self.directory / CODE_DIFF
        kept = path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()
        return path if kept and kept == self.record["code"].get("changes") else None

    @property
    def _checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def _noted(self) -> dict[str, Any]:
        """The digests that the record has of steps on the way, where it has any."""
        noted = self.record.get("states")
        return {name: told for name, told in noted.items() if name.isdecimal()} if isinstance(noted, dict) else {}


def examine(directory: Path) -> Evidence:
    """Reads what a run has left.

    Raises:
      UsageError: It is no run directory, or its configuration is gone.
    """
    record, directory = read(directory), directory.absolute()  # Orbax takes no other paths
    if wrong := damage(record):
        raise UsageError(f"{str(directory / 'run.json')!r} is damaged: {wrong} is not what it should be")
    packages = read_requirements(directory)
    record["environment"] = {**record["environment"], **({"installed": packages} if packages else {})}
    return Evidence(directory, record, _config(directory), _numbers(directory / "history.csv", record))


def _config(directory: Path) -> dict[str, Any]:
    """Returns the configuration of the newest checkpoint: `config.yaml` may have been edited since."""
    for step in sorted((p for p in directory.glob("checkpoints/*") if p.name.isdecimal()), key=_number, reverse=True):
        try:
            text = arrays.read_meta(step)["extra"]["attempt"]["config"]
            return dict(dialect.load(text))
        except Exception:  # of Orbax whatever it finds; the file says it as well
            continue
    return stored_config(directory / "config.yaml")


def stored_config(path: Path) -> dict[str, Any]:
    """Returns the values in a configuration file of a run.

    Raises:
      UsageError: It is gone, or no configuration.
    """
    try:
        tree = dialect.load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the configuration {str(path)!r} cannot be read: {reason}") from None
    if not isinstance(tree, dict):
        raise UsageError(f"the configuration {str(path)!r} is empty: put back what the run was trained with")
    return tree


def _numbers(path: Path, record: Record) -> Numbers:
    """Returns the rows of the history; with the last belong the numbers of a test, which the record alone has."""
    found = {int(row["step"]): {name: cell for name, cell in row.items() if _counts(name, cell)} for row in _rows(path)}
    tested = {name: repr(value) for name, value in record["metrics"].get("test", {}).items()}
    for layout in layouts():
        tested |= _logged(path.with_name(layout.logged)) if layout.logged else {}
    if tested:
        found[record["step"]] = {**found.get(record["step"], {}), **tested}
    return found


def _logged(path: Path) -> dict[str, str]:
    """Returns what a task logged itself, at steps of its own: all of it counts when the run has ended."""
    found = {}
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):  # a line that a kill has cut
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
        raise UsageError(f"the numbers of the run, {str(path)!r}, cannot be read: {error}") from error


def _counts(name: str | None, cell: str | None) -> bool:
    return bool(name and cell) and name not in ("step", *CLOCKS) and not str(name).endswith(_TIMES)


def _is_step(path: Path) -> bool:
    return path.parent.name.isdecimal()


def _number(path: Path) -> int:
    return int(path.name)
