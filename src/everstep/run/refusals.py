"""All that keeps a run from being resumed, at once: the changes of the configuration, other data, other callbacks.

A change is refused before anything is built. Then the rest is looked at, too, so that the message is complete, and
advises no `allow_change` after which the checkpoint could not be loaded.
"""

import logging
from collections.abc import Iterable, Sequence

from everstep.checkpoint import Checkpointer
from everstep.errors import Problem, UsageError
from everstep.loop import Hook, Trainer, saved_parts
from everstep.run.attempt import Attempt
from everstep.run.resume_checks import DATA, ChangeRefused, check_data, data_fingerprints

logger = logging.getLogger(__name__)


def all_refusals(
    refused: ChangeRefused,
    directory: str,
    checkpointer: Checkpointer,
    trainer: Trainer,
    hooks: Iterable[Hook],
    allow_change: Sequence[str],
) -> ChangeRefused:
    """Returns the error with everything else that differs from the run, and a remedy that works.

    Args:
      refused: The refused changes of the configuration.
      directory: The run directory.
      checkpointer: Its checkpoints.
      trainer: The trainer of this call.
      hooks: The hooks of this call, callbacks among them.
      allow_change: Keys that may change.
    """
    state, meta = checkpointer.restore()
    saved = saved_parts(meta)
    others: list[Problem] = []
    keys = list(refused.problems[-1].mentions.values())
    for hook in hooks:
        try:
            if hook.name in saved:
                hook.check(saved[hook.name])
        except UsageError as error:
            others += [Problem(problem.key, problem.reason) for problem in error.problems]
            keys = []
    try:
        check_data(saved.get(Attempt.name, {}).get("data", {}), data_fingerprints(trainer), allow_change)
    except ChangeRefused as error:
        others += error.problems[:-1]
        keys += [DATA] if keys else []
    try:
        trainer.check({key: array for key, array in state.items() if key.partition("/")[0] not in saved}, meta)
    except UsageError as misfit:
        logger.debug("%s", misfit)
        return refused.with_more(others, (), f"what the run in {directory!r} has saved does not fit this call")
    return refused.with_more(others, keys)
