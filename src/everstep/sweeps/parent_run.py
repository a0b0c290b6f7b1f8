"""A sweep on MLflow: one parent run, and the runs of its trials below it.

Trials carry the tags `everstep.sweep` and `everstep.trial` from their first step. The parent is created when the first
trial has ended, and each trial is put below it when it ends, through a spool like that of any run: a server that is
down costs nothing, and the next trial or command catches up.
"""

import logging
import uuid
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.sweeps.study import CONTINUES, SweepStudy
from everstep.tracking import (
    DeliveryProgress,
    MlflowNames,
    MlflowTarget,
    MlflowTracker,
    flattened,
    spool_of,
    sync,
    without_credentials,
)

logger = logging.getLogger(__name__)

_LOOKED_AT = 20  # trials: if none of the first is tracked on MLflow, none is

PARENT = "mlflow.parentRunId"
"""The tag that MLflow groups runs by."""


class ParentRun:
    """The run of a sweep on MLflow.

    Args:
      study: The sweep.
    """

    def __init__(self, study: SweepStudy) -> None:
        self._study = study
        self._grouped: set[int] = set()

    def update(self) -> str | None:
        """Creates the parent run, and puts the runs of trials that have ended since the last call below it.

        Returns:
          The parent's id on MLflow; None if no trial is tracked there, the server does not answer, or another process
          does the same.
        """
        with self._study.alone("mlflow") as alone:
            try:
                return self._group() if alone else None
            except Exception as error:  # MLflow's; trials go on, whatever it answers
                logger.warning("the trials are not grouped on MLflow: %s; the same command tries again", error)
                return None

    def _group(self) -> str | None:
        ended = {
            trial.number: self._study.definition.target.run_dir(self._study.directory, trial.number)
            for trial in self._study.trials()
            if trial.state.is_finished() and CONTINUES not in trial.user_attrs
        }
        if not any(spool_of(run_dir).path.is_file() for run_dir in list(ended.values())[:_LOOKED_AT]):
            return None
        new = {number: ended[number] for number in ended if number not in self._grouped}
        tracked = [run_dir for run_dir in new.values() if spool_of(run_dir).path.is_file()]
        target = MlflowTarget.recorded(spool_of(tracked[0]).records()) if tracked else None
        parent = None if target is None else self._parent(target, len(ended))
        if parent is not None:
            for run_dir in tracked:
                _put_below(run_dir, parent)
            self._grouped |= set(new)
        return parent

    def _parent(self, target: MlflowTarget, ended: int) -> str | None:
        """Writes the parent run; returns its id on the server, None if that does not answer."""
        study, definition, ranked = self._study, self._study.definition, self._study.ranked()
        run_id = uuid.uuid5(uuid.NAMESPACE_URL, f"everstep-sweep {study.directory.resolve()} {definition.digest()}").hex
        space: dict[str, Any] = {one.key: one.as_dict() for one in definition.space.dimensions}
        params = {"sampler": definition.sampler, "pruner": definition.pruner, "space": flattened(space)}
        tags = {"everstep.sweep": study.directory.name, "trials": ended, "metric": study.shown_metric}
        names = MlflowNames(target.experiment, run=study.directory.name, params=params, tags=tags)
        tracker = MlflowTracker(study.directory, run_id, names, target.uri)
        tracker.start(0)
        if ranked and ranked[0].values:
            tracker.log(ended, {f"best {study.metrics[0] or 'loss'}": ranked[0].values[0]}, "train")
        tracker.finish("finished" if study.is_done() else "running")
        tracker.close()
        spool = spool_of(study.directory)
        server = without_credentials(target.uri)
        return DeliveryProgress.load(spool.path.with_suffix(".sent.json"), server, spool).remote_id


def _put_below(run_dir: Path, parent: str) -> None:
    spool = spool_of(run_dir)
    if any(record["type"] == "tags" and record["values"].get(PARENT) == parent for record in spool.records()):
        return
    spool.open()
    spool.append({"type": "tags", "values": {PARENT: parent}})
    spool.close()
    try:
        sync(run_dir)
    except UsageError as error:  # a process still sends
        logger.warning("%s: %s", run_dir, error)
