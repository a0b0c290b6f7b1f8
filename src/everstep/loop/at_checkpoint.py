"""Evaluating one checkpoint, whichever is the newest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.loop.controller import Controller


def at_checkpoint(path: str | Path) -> Callable[..., Controller]:
    """Returns what makes a controller that begins with a checkpoint, anywhere.

    It does nothing but look: actions that a run is to do after an evaluation belong to its newest state.

        at = at_checkpoint("runs/a/checkpoints/200")
        everstep.run_experiment(None, task, "eval", params, "runs/a", controller_cls=at, save_summary=False)

    Args:
      path: The checkpoint: a directory named by its step.
    """
    folder, step = Path(path).parent, int(Path(path).name)

    class AtCheckpoint(Controller):
        """A controller of one checkpoint."""

        def restore_checkpoint(self, step: int | None = step) -> int | None:
            """Restores it."""
            return super().restore_checkpoint(step)

    def make(**settings: Any) -> Controller:
        own = {"checkpointer": OrbaxCheckpointer(folder, repair=False), "train_actions": (), "eval_actions": ()}
        return AtCheckpoint(**{**settings, **own})

    return make
