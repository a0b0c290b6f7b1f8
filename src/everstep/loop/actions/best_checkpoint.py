"""The best weights of a run, in a folder beside its checkpoints.

`<model_dir>/<subdir>/` contains the weights of the step with the best evaluation, `<step>/`, and `info.json` with all
metrics of that evaluation and `best_ckpt_global_step`. Whenever a process is killed, `info.json` describes weights that
exist: new ones are written completely, then `info.json` is replaced, then the old ones are removed.
"""

import functools
import logging
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Literal

from everstep import storage
from everstep.errors import UsageError
from everstep.loop.actions import metrics
from everstep.loop.actions.weights import WeightsFolder, attempt, model_weights

logger = logging.getLogger(__name__)

STEP = "best_ckpt_global_step"
KEY = "trainer.best_checkpoint_eval_metric"


class BestCheckpointExporter:
    """Writes the weights whenever an evaluation is the best so far.

        exporter = BestCheckpointExporter("runs/demo/best", "accuracy")
        exporter.maybe_export_checkpoint(trainer, logs, trainer.global_step)

    It compares with the weights in the folder. In a resumed run the state in the checkpoint takes precedence, and
    weights of a later step than the first evaluation are ignored: a killed attempt had reached it, and the run will
    reach it again.

    Args:
      export_dir: The folder.
      metric_name: The evaluation metric, `a|b` for a nested one.
      metric_comp: Whether a `higher` or a `lower` value is better.
      failure: What to do if the weights cannot be written: `stop`, or `continue` with existing ones.

    Raises:
      UsageError: `metric_comp` is something else.
    """

    def __init__(
        self,
        export_dir: storage.PathLike,
        metric_name: str,
        metric_comp: str = "higher",
        failure: Literal["stop", "continue"] = "stop",
    ) -> None:
        if metric_comp not in ("higher", "lower"):
            key = "trainer.best_checkpoint_metric_comp"
            raise UsageError("expected 'higher' or 'lower'", key=key, received=metric_comp)
        self.metric, self.comp, self.failure = metric_name, metric_comp, failure
        self._folder, self._path = WeightsFolder(export_dir), Path(export_dir).absolute() / "info.json"
        self._stored = self._repaired()
        self._best = self._stored_value()
        self._sure = False  # whether the best value is of an earlier step of this run
        self._controller: Any = None

    def set_controller(self, controller: Any) -> None:
        """Called by `run_experiment` with the loop."""
        self._controller = controller
        self._folder.join(controller)

    @property
    def best_ckpt_logs(self) -> dict[str, Any]:
        """The content of `info.json`; empty if nothing was written yet."""
        return dict(self._stored)

    @property
    def best_ckpt_path(self) -> str | None:
        """The path of the best weights; None if nothing was written yet."""
        return str(self._folder.directory / str(self._stored[STEP])) if self._stored else None

    @property
    def best_value(self) -> float | None:
        """The best value of the metric so far; None if there is none."""
        return self._best

    def maybe_export_checkpoint(self, trainer: Any, logs: MutableMapping[str, Any], global_step: int) -> bool:
        """Writes the weights if the evaluation is the best so far, and adds `best_<metric>` to its logs.

        Args:
          trainer: The trainer whose model is written, with averaged weights if its optimizer averages them.
          logs: The logs of the evaluation.
          global_step: The evaluated step.

        Returns:
          Whether the evaluation is the best so far.

        Raises:
          UsageError: The logs do not have the metric; lists those they have.
          SaveError: The weights cannot be written; existing ones are kept.
        """
        value = metrics.value_of(logs, self.metric, KEY)
        if not self._sure and self._stored.get(STEP, -1) >= global_step:
            self._best = None
        self._sure = True
        better = metrics.is_better(value, self._best, self.comp == "higher") and self._export(
            trainer, {**metrics.scalars(logs), STEP: int(global_step)}
        )
        if better:
            self._best = value
        if self._best is not None:
            logs[f"best_{self.metric}"] = self._best
        return better

    def get_state(self) -> dict[str, Any]:
        """Returns the metric and its best value."""
        return {"metric": self.metric, "comp": self.comp, "best": self._best}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned, if the metric is the same and the weights still exist.

        The final evaluation comes after the last save: weights in the folder that are not of a later step count, too.
        """
        if (state["metric"], state["comp"]) == (self.metric, self.comp) and self._stored:
            step = None if self._controller is None else self._controller.step
            stored = self._stored_value(), self._stored[STEP]
            self._best, self._sure = metrics.best_at(step, state["best"], *stored, self.comp == "higher"), True

    def _export(self, trainer: Any, info: dict[str, Any]) -> bool:
        """Writes weights and `info.json`; returns whether that succeeded."""
        if info == self._stored:  # written by an attempt that was killed before the next save
            return True
        return attempt(functools.partial(self._write, trainer, info), "the best weights", self.failure)

    def _write(self, trainer: Any, info: dict[str, Any]) -> None:
        self._folder.write(info[STEP], model_weights(trainer), {"info": info}, info)
        storage.write_json(self._path, info)
        self._stored = info
        self._folder.keep({info[STEP]})  # last: until here the old weights are the best

    def _repaired(self) -> dict[str, Any]:
        """Returns the info of the weights in the folder; completes a change that a kill has interrupted."""
        written, steps = self._written(), self._folder.steps()
        if not steps:
            return {}
        step = written[STEP] if written.get(STEP) in steps else steps[-1]
        info = self._folder.meta(step).get("info", {})
        if not info:
            logger.warning(
                "the weights in %s cannot be read: they are replaced by the next best", self._folder.directory
            )
            return {}
        if info != written:
            storage.write_json(self._path, info)
        self._folder.keep({step})
        return info

    def _written(self) -> dict[str, Any]:
        try:
            info = storage.read_json(self._path)
        except UsageError:
            return {}
        return info if isinstance(info, dict) else {}

    def _stored_value(self) -> float | None:
        """Returns the metric of the weights in the folder; None if they were chosen by another metric."""
        try:
            value = metrics.value_of(self._stored, self.metric, KEY)
        except UsageError:
            return None
        return value if metrics.is_better(value, None, True) else None


def maybe_create_best_ckpt_exporter(params: Any, data_dir: storage.PathLike | None) -> BestCheckpointExporter | None:
    """Returns the exporter of an experiment's best weights; None if it is not configured.

    Args:
      params: The experiment's configuration. The exporter is configured by `best_checkpoint_export_subdir` and
        `best_checkpoint_eval_metric` in the trainer's section.
      data_dir: The run directory.
    """
    config = params.trainer
    folder, metric = config.best_checkpoint_export_subdir, config.best_checkpoint_eval_metric
    if not (data_dir and folder and metric):
        return None
    return BestCheckpointExporter(
        Path(data_dir) / folder, metric, config.best_checkpoint_metric_comp, config.save_failure
    )
