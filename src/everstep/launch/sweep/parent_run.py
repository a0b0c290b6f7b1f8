"""A sweep on MLflow: one parent run, and the runs of its trials below it.

Trials carry the tags `everstep.sweep` and `everstep.trial` from their first step. The parent is created when trials
have ended, through a spool like that of any run: a server that is down costs nothing, and the next command catches up.
"""

import logging
import uuid
from pathlib import Path

from everstep import redaction
from everstep.errors import UsageError
from everstep.launch.sweep.study import CONTINUES, SweepStudy
from everstep.tracking.delivery import DeliveryProgress
from everstep.tracking.mlflow import MlflowNames, MlflowTarget, MlflowTracker, spool_of, without_credentials
from everstep.tracking.spool import flattened
from everstep.tracking.sync import sync

logger = logging.getLogger(__name__)

_LOOKED_AT = 20  # trials: if none of the first is tracked on MLflow, none is

PARENT = "mlflow.parentRunId"
"""The tag that MLflow groups runs by."""


def group_trials(study: SweepStudy) -> str | None:
    """Creates the parent run, and puts the runs of all trials that are tracked on MLflow below it.

    Returns:
      The parent's id on MLflow; None if no trial is tracked there, or the server does not answer.
    """
    places = [
        study.definition.target.run_dir(study.directory, trial.number)
        for trial in study.trials()
        if trial.state.is_finished() and CONTINUES not in trial.user_attrs
    ]
    if not any(spool_of(run_dir).path.is_file() for run_dir in places[:_LOOKED_AT]):
        return None
    tracked = [run_dir for run_dir in places if spool_of(run_dir).path.is_file()]
    try:
        parent = _parent(study, tracked[0])
        for run_dir in tracked if parent is not None else ():
            _put_below(run_dir, str(parent))
    except Exception as error:  # MLflow's; the sweep is done, whatever it answers
        logger.warning("the trials are not grouped on MLflow: %s; the same command tries again", error)
        return None
    return parent


def _parent(study: SweepStudy, first: Path) -> str | None:
    target = MlflowTarget.recorded(spool_of(first).records())
    if target is None:
        return None
    definition, ranked = study.definition, study.ranked()
    run_id = uuid.uuid5(uuid.NAMESPACE_URL, f"everstep-sweep {study.directory.resolve()} {definition.digest()}").hex
    space = {one.key: one.as_dict() for one in definition.space.dimensions}
    names = MlflowNames(
        target.experiment,
        run=study.directory.name,
        params=redaction.tree({"sampler": definition.sampler, "pruner": definition.pruner, "space": flattened(space)}),
        tags={"everstep.sweep": study.directory.name, "trials": len(study.trials()), "metric": definition.shown_metric},
    )
    tracker = MlflowTracker(study.directory, run_id, names, target.uri)
    tracker.start(0)
    if ranked and ranked[0].values:
        tracker.log(len(study.trials()), {f"best {definition.metrics[0] or 'loss'}": ranked[0].values[0]}, "train")
    tracker.finish("finished")
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
