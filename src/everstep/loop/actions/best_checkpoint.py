"""The best weights of a run, kept apart from its checkpoints.

`<model_dir>/<subdir>/` holds the weights of the step with the best evaluation, `<step>/`, and `info.json` with all
metrics of that evaluation and `best_ckpt_global_step`. Whenever a process dies, `info.json` names weights that are
there and that it is about: new ones are written whole, then `info.json` is replaced, then the old ones go.
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
    """Writes the weights each time an evaluation is the best so far.

        exporter = BestCheckpointExporter("runs/demo/best", "accuracy")
        exporter.maybe_export_checkpoint(trainer, logs, trainer.global_step)

    It compares with what is in the folder. In a resumed run, what its checkpoint holds goes first, and
    what is of a later step than the first evaluation does not count: a killed attempt may have been further, and the
    run will get there again.

    Args:
      export_dir: The folder.
      metric_name: The evaluation metric, `a|b` for one inside another.
      metric_comp: Whether a `higher` or a `lower` value is better.
      failure: What to do where the disk does not take the weights: `stop`, or `continue` with those there are.

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
        self._sure = False  # whether the best is known to be of this run's own past
        self._controller: Any = None

    def set_controller(self, controller: Any) -> None:
        """Receives the loop whose evaluations it gets; `run_experiment` calls it."""
        self._controller = controller
        self._folder.join(controller)

    @property
    def best_ckpt_logs(self) -> dict[str, Any]:
        """What `info.json` says; empty if nothing was written yet."""
        return dict(self._stored)

    @property
    def best_ckpt_path(self) -> str | None:
        """Where the best weights are; None if nothing was written yet."""
        return str(self._folder.directory / str(self._stored[STEP])) if self._stored else None

    @property
    def best_value(self) -> float | None:
        """The best value of the metric so far; None if there is none."""
        return self._best

    def maybe_export_checkpoint(self, trainer: Any, logs: MutableMapping[str, Any], global_step: int) -> bool:
        """Writes the weights if the evaluation is the best so far, and adds `best_<metric>` to its logs.

        Args:
          trainer: Its model is written, with averaged weights where its optimizer averages them.
          logs: Of the evaluation.
          global_step: The step that was evaluated.

        Returns:
          Whether it is the best so far.

        Raises:
          UsageError: The logs do not have the metric; lists those they have.
          SaveError: The disk did not take the weights; what was there is still there.
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
        """Returns what a run has to remember."""
        return {"metric": self.metric, "comp": self.comp, "best": self._best}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `get_state` returned, where it is of the same metric and the weights are still there.

        A closing evaluation comes after the last save: what is in the folder, of no later step, is the run's own, too.
        """
        if (state["metric"], state["comp"]) == (self.metric, self.comp) and self._stored:
            step = None if self._controller is None else self._controller.step
            stored = self._stored_value(), self._stored[STEP]
            self._best, self._sure = metrics.best_at(step, state["best"], *stored, self.comp == "higher"), True

    def _export(self, trainer: Any, info: dict[str, Any]) -> bool:
        """Writes weights and what they are; returns whether the disk took them."""
        if info == self._stored:  # written by an attempt that was killed before it was saved
            return True
        return attempt(functools.partial(self._write, trainer, info), "the best weights", self.failure)

    def _write(self, trainer: Any, info: dict[str, Any]) -> None:
        self._folder.write(info[STEP], model_weights(trainer), {"info": info}, info)
        storage.write_json(self._path, info)
        self._stored = info
        self._folder.keep({info[STEP]})  # only now: until here the former ones were the best there are

    def _repaired(self) -> dict[str, Any]:
        """Returns what is in the folder; where a process was killed in the middle of a change, completes it."""
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
            found = storage.read_json(self._path)
        except UsageError:
            return {}
        return found if isinstance(found, dict) else {}

    def _stored_value(self) -> float | None:
        """Returns the metric of what is in the folder; None where that was exported by another one."""
        try:
            value = metrics.value_of(self._stored, self.metric, KEY)
        except UsageError:
            return None
        return value if metrics.is_better(value, None, True) else None


def maybe_create_best_ckpt_exporter(params: Any, data_dir: storage.PathLike | None) -> BestCheckpointExporter | None:
    """Returns what keeps the best weights of an experiment; None where it is not asked for.

    Args:
      params: The experiment's configuration. It is asked for where its trainer's section has a
        `best_checkpoint_export_subdir` and a `best_checkpoint_eval_metric`.
      data_dir: The run directory.
    """
    config = params.trainer
    folder, metric = config.best_checkpoint_export_subdir, config.best_checkpoint_eval_metric
    if not (data_dir and folder and metric):
        return None
    return BestCheckpointExporter(
        Path(data_dir) / folder, metric, config.best_checkpoint_metric_comp, config.save_failure
    )
