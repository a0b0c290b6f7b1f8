"""The export of a run's model, when it is trained."""

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import UsageError
from everstep.export import evaluated_weights, export_all, sample_inputs
from everstep.loop import Trainer, random_state

logger = logging.getLogger(__name__)


def export_trained(trainer: Trainer, directory: Path, formats: Sequence[str] | None) -> bool:
    """Exports the model as it was evaluated, with averaged weights, if the optimizer keeps an average.

    Returns:
      Whether anything was written.
    """
    written = []
    try:
        sample = sample_inputs(trainer.model, trainer.example_inputs)
    except UsageError as error:
        logger.warning("not exported: %s", error)
    else:
        with evaluated_weights(trainer.optimizer), random_state.untouched():
            written = export_all(trainer.model, directory / "export", sample, formats)
    if not written:
        logger.warning(
            "the model is trained and saved, but not exported: fix what is reported above, then: everstep export %s",
            shlex.quote(str(directory)),
        )
    return bool(written)
