"""The checkpoints of a run, as its configuration keeps them."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from everstep.checkpoint import Checkpointer, OrbaxCheckpointer, Retention, SaveError, SharedCheckpointer
from everstep.gang import Gang
from everstep.loop import TrainerConfig, in_bytes
from everstep.run.record import Run
from everstep.run.signals import Interrupted

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def opened_checkpoints(
    run: Run, directory: Path, gang: Gang, config: TrainerConfig, training: bool, checkpoint: str | Path | None
) -> Iterator[Checkpointer]:
    """Opens the checkpoints in the run's directory, or those beside `checkpoint`; closes them at the end.

    A failed save does not hide an error that is being raised.
    """
    retention = Retention(
        newest=config.max_to_keep,
        every_steps=config.keep_steps,
        every_seconds=config.keep_seconds,
        ladder_bytes=None if config.keep_ladder is None else in_bytes(config.keep_ladder),
        best=config.keep_best,
        metric=config.best_checkpoint_eval_metric,
        mode=config.best_checkpoint_metric_comp,
    )
    run_id = run.id if training else run.recorded_id  # an evaluation may start before the trainer
    folder = directory / "checkpoints" if checkpoint is None else Path(checkpoint).parent
    checkpointer: Checkpointer
    if checkpoint is not None:
        checkpointer = OrbaxCheckpointer(folder, repair=False)
    else:
        checkpointer = OrbaxCheckpointer(folder, retention, run_id, training and gang.is_first, run.saved)
    if gang.size > 1:
        checkpointer = SharedCheckpointer(checkpointer, gang, folder)
    try:
        yield checkpointer
    except BaseException as error:
        try:
            checkpointer.close()
        except SaveError as failure:
            logger.error("%s", failure)
        if isinstance(error, Interrupted):
            error.saved = checkpointer.latest()
        raise
    checkpointer.close()
