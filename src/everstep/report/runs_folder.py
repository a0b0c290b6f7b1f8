"""The runs below one folder, as the live page shows them: the table, curves, comparisons and reports.

Only reads. A run is named by its path below the folder, and only names that the table has are known: no other path can
be asked for.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.errors import UsageError
from everstep.report.html_page import report_html
from everstep.report.numbers import finite
from everstep.report.run_data import exported, marks, named, read_curves, read_export, read_record, steps_per_epoch
from everstep.report.side_by_side import side_by_side
from everstep.run import Overview, overview
from everstep.tracking import SIDE_FIGURES, direction

_LEAST_AGE, _SHARE = 1.0, 0.2  # seconds that a table is good for; the share of the time in which it may be read


class RunsFolder:
    """The runs below a folder. Threads of a server call it at the same time.

    Args:
      root: The folder; it may come into being later.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._directories: dict[str, Path] = {}
        self._until = 0.0

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each run, sorted by name. Reading many takes long, so a table is good for a while."""
        with self._lock:
            if (begin := time.monotonic()) >= self._until:
                found = {self._name(run.directory): run for run in overview(self.root)}
                self._rows = [_row(name, run) for name, run in found.items()]
                self._directories = {name: run.directory for name, run in found.items() if self._holds(run.directory)}
                took = time.monotonic() - begin
                self._until = begin + took + max(_LEAST_AGE, took / _SHARE)
            return self._rows

    def curves(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the learning curves of runs, without those that cannot be read.

        Raises:
          UsageError: There is no such run.
        """
        return [found for name in names if (found := _curves(name, self.directory(name))) is not None]

    def comparison(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns what differs between runs.

        Raises:
          UsageError: There is no such run, or there are fewer than two.
        """
        found = side_by_side([self.directory(name) for name in names])
        sections = {title: [row.as_dict() for row in rows] for title, rows in found.shown_sections.items()}
        return {"runs": list(names), "sections": _for_json(sections)}

    def report(self, names: Sequence[str]) -> str:
        """Returns the report of a run, or of several side by side, as a page; no file is written.

        Raises:
          UsageError: There is no such run, or it has nothing to show yet.
        """
        if not names:
            raise UsageError("a report needs at least one run", key="run", remedy="name one")
        return report_html([self.directory(name) for name in names])

    def directory(self, name: str) -> Path:
        """Returns the directory of a run in the table.

        Raises:
          UsageError: There is none.
        """
        if name not in self._directories:
            self.rows()
        if name not in self._directories:
            raise UsageError("there is no such run", key="run", received=name)
        return self._directories[name]

    def _name(self, directory: Path) -> str:
        return directory.relative_to(self.root).as_posix()

    def _holds(self, directory: Path) -> bool:
        """Whether a directory is inside the folder, with links followed."""
        return directory.resolve().is_relative_to(self.root)


def _row(name: str, run: Overview) -> dict[str, Any]:
    record: Mapping[str, Any] = run.record or {"experiment": None, "backend": None, "attempts": [], "metrics": {}}
    attempts, state = record["attempts"], run.state
    left = run.seconds_left if state == "running" else None  # it asks for the state again
    return {
        "name": name,
        "state": state,
        "step": run.step,
        "total": run.train_steps,
        "left": None if left is None else round(left),
        "seen": run.last_sign,
        "started": attempts[0].get("started") if attempts else None,
        "attempts": len(attempts),
        "experiment": record.get("name") or record["experiment"],
        "backend": record["backend"],
        "reason": redaction.text(str(attempts[-1].get("reason") or "")) if attempts else "",
        "metrics": _metrics(run),
    }


def _metrics(run: Overview) -> dict[str, dict[str, Any]]:
    """Returns the value of each metric by `validation loss`, validation first; `of` says which weights it is of."""
    found, final, logs = {}, run.final_weights, run.shown_metrics
    for kind in ("validation", "train"):
        for name, value in logs.get(kind, {}).items():
            if name not in SIDE_FIGURES:
                metric = named(name, set())[0]
                mark = final.mark if final is not None and name in final.metrics.get(kind, {}) else ""
                found[f"{kind} {metric}"] = {"value": finite(value), "better": direction(metric), "of": mark}
    return found


def _curves(name: str, directory: Path) -> dict[str, Any] | None:
    try:
        record, export = read_record(directory), read_export(directory)
    except UsageError:
        return None
    curves = read_curves(directory / "history.csv", record)
    return {
        "name": name,
        "notes": [],
        "marks": marks(record),
        "exported": exported(export),
        "steps_per_epoch": steps_per_epoch(curves, record),
        "curves": [dataclasses.asdict(curve) for curve in curves],
    }


def _for_json(value: Any) -> Any:
    """Returns a value with numbers that JSON does not have, NaN and infinities, as text."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)
