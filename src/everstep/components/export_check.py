"""Whether an evaluation speaks of what was trained: settings, code and the validation value of the exported model."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from everstep import redaction
from everstep.components.config_struct import ConfigStruct
from everstep.components.run_folder import RunFolder
from everstep.components.training_config import TASK_PATH, training_values
from everstep.config import load_file
from everstep.config.difference import Change, tree_differences
from everstep.errors import TrainingError
from everstep.run import key_path
from everstep.run.environment import code_change, code_version

logger = logging.getLogger(__name__)

CODE = "code"
"""What `--allow-change` calls the code."""

_TOLERANCE = 1e-3  # relative: the same weights on the same data, perhaps on another machine


class ExportCheck:
    """Compares an evaluation with the training that made the export.

    Args:
      folder: The run's folder, with a complete export.
      config: The configuration that is evaluated with.
      record: What `export.json` says.
      allow_change: Keys that may differ from training, and `code`, although the numbers then contradict training's.

    Attributes:
      notes: A line for everything that differs; the pages of the run show them.
    """

    def __init__(
        self, folder: RunFolder, config: ConfigStruct, record: Mapping[str, Any], allow_change: Sequence[str] = ()
    ) -> None:
        self._record, self._allowed = record, [key.removeprefix(f"{TASK_PATH}.") for key in allow_change]
        before = ConfigStruct(load_file(folder.exported / "config.yaml"))
        values = [redaction.tree(training_values(each)) for each in (before, config)]
        self._settings = tree_differences(*values)
        self._code = code_change(record.get("code") or {}, code_version(folder.path.parent.parent))
        places = [each.get("data_dir") for each in (before, config)]
        moved = [] if places[0] == places[1] else [Change("data_dir", *places)]
        self.notes: list[str] = []
        if self._settings or moved:
            self._note(f"the settings have changed since training: {_listed([*self._settings, *moved])}")
        if self._code:
            self._note(f"the code has changed since the export: {self._code}")

    def compare(self, found: Mapping[str, float]) -> None:
        """Compares what the model's own metrics say of the validation data with the epoch that was exported.

        Call it before anything is written: numbers that contradict training do not replace those that do not.

        Args:
          found: The numbers, under the names that they have without `val_`.

        Raises:
          TrainingError: They differ, and settings or code have changed.
        """
        metric = str(self._record.get("metric"))
        trained, now = self._record.get(metric), found.get(metric.removeprefix("val_"))
        if not metric.startswith("val_") or trained is None or now is None or _same(float(trained), now):
            return
        text = f"{metric} of the exported model is {now:.6g}, but was {float(trained):.6g} in training"
        epoch = self._record.get("epoch")
        text += "" if epoch is None else f" (epoch {int(epoch) + 1})"
        refused = [change for change in self._settings if not key_path.is_below(change.path, self._allowed)]
        keys = [change.path for change in refused] + ([CODE] if self._code and CODE not in self._allowed else [])
        if keys:
            flags = " ".join(f"--allow-change {key}" for key in keys)
            raise TrainingError(
                f"{text}; since then, {'; '.join(self._reasons(refused))}: nothing was written; set it back, start a "
                f"run with another name, or replace the reports all the same: {flags}"
            )
        self._note(text)

    def _reasons(self, settings: Sequence[Change]) -> list[str]:
        reasons = [f"settings have changed ({_listed(settings)})"] if settings else []
        return reasons + ([f"the code has changed ({self._code})"] if self._code else [])

    def _note(self, text: str) -> None:
        self.notes.append(text)
        logger.warning("%s", text)


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(map(str, changes))


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))
