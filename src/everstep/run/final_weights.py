"""Which weights a run ended with, and what they achieved: those of its last step, or of an earlier one.

`EarlyStopping(restore_best_weights=True)` ends a run with the weights of its best epoch, and a project exports its best
epoch. Then the last numbers are not those of the model that ships: what lists, reports and comparisons show is the
evaluation of these weights, with the last one beside it.
"""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.run.layout_registry import export_record, loop_directory
from everstep.run.record import Record
from everstep.tracking import read_history

EXPORTED_STEP = "best_ckpt_global_step"
"""The key of the exported step in a project's `export.json`."""


@dataclasses.dataclass(frozen=True)
class FinalWeights:
    """The weights that a run ended with, where they are not those of its last step.

    Attributes:
      step: The step that they are from.
      epoch: The epoch that ends there, counted from 1; None where the run does not count epochs.
      is_exported: Whether they were exported.
      metrics: The logs of that step, by kind, as the record has those of the last step.
    """

    step: int
    epoch: int | None
    is_exported: bool
    metrics: Mapping[str, Mapping[str, Any]]

    @property
    def place(self) -> str:
        """Returns where they are from: `epoch 4`."""
        return f"step {self.step}" if self.epoch is None else f"epoch {self.epoch}"

    @property
    def mark(self) -> str:
        """Returns what is said of their numbers: `epoch 4, exported`."""
        return f"{self.place}, {'exported' if self.is_exported else 'restored'}"


def read_final_weights(record: Mapping[str, Any] | None, directory: Path) -> FinalWeights | None:
    """Returns the weights that a run ended with; None where they are those of its last step, or unknown.

    Args:
      record: The content of its `run.json`; None if there is none.
      directory: The run directory; of a project's run, its folder.
    """
    if record is None:
        return None
    known = record.get("final_weights") or {}
    with contextlib.suppress(UsageError, OSError, KeyError, TypeError, ValueError):
        if (path := export_record(directory)) is not None:
            export = storage.read_json(path)
            step, epoch = int(export[EXPORTED_STEP]), export.get("epoch")
            metrics = logs_at(loop_directory(directory) / "history.csv", record["metrics"], step)
            known = {"step": step, "epoch": None if epoch is None else int(epoch) + 1, "metrics": metrics}
            known["exported"] = True
    if not isinstance(known.get("step"), int) or known["step"] == record["step"]:
        return None
    return FinalWeights(known["step"], known.get("epoch"), bool(known.get("exported")), known.get("metrics") or {})


def stopped_early(record: Record | Mapping[str, Any]) -> str:
    """Returns where a run was stopped before its end, `stopped early at epoch 5 of 25`; empty if it was not."""
    stopped = record.get("stopped_early")
    if not stopped:
        return ""
    if stopped.get("epoch") is not None and record.get("epochs"):
        return f"stopped early at epoch {stopped['epoch']} of {record['epochs']}"
    total = record.get("train_steps")
    return f"stopped early at step {stopped['step']}{f' of {total}' if total else ''}"


def logs_at(history: Path, last: Mapping[str, Mapping[str, Any]], step: int) -> dict[str, dict[str, float]]:
    """Returns the logs of a step in a history, by kind, under the names of the last ones."""
    rows = [cells for at, cells in read_history(history)[1] if at == step]
    cells = rows[-1] if rows else {}
    found: dict[str, dict[str, float]] = {}
    for kind, logs in last.items():
        others = {name for other, names in last.items() if other != kind for name in names}
        columns = {name: _column(name, kind, cells, others) for name in logs}
        with contextlib.suppress(ValueError):
            found[kind] = {name: float(cells[column]) for name, column in columns.items() if column in cells}
    return found


def _column(name: str, kind: str, cells: Mapping[str, str], others: set[str]) -> str:
    """Returns the column of a log: validation's has a prefix where training uses the name, too."""
    prefixed = f"{kind}_{name}"
    return prefixed if kind != "train" and (prefixed in cells or name in others) else name
