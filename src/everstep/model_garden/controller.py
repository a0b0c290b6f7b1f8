"""`Controller` with the arguments of orbit's, for programs that were written for it; this is `everstep.Controller`."""

import os
from collections.abc import Iterable
from typing import Any

from everstep import loop
from everstep.checkpoint import Checkpointer
from everstep.errors import UsageError
from everstep.model_garden.plain_trainers import inner_loops
from everstep.tracking import TensorBoardTracker, Tracker


class Controller(loop.Controller):
    """Trains, evaluates, saves and acts when each is due; also with orbit's arguments, and for any object.

        controller = Controller(trainer=trainer, evaluator=trainer, steps_per_loop=100, checkpointer=…, tracker=…)
        controller.restore_checkpoint()
        logs = controller.train_and_evaluate(train_steps=1000, eval_interval=500)

    Args:
      trainer: A `Trainer`; or any object that has `train(num_steps) -> logs`; None to evaluate only.
      evaluator: A `Trainer`; or any object that has `evaluate(num_steps) -> logs`; None to train only.
      global_step: For objects without one: the variable that counts their steps, such as `optimizer.iterations`.
      strategy: For objects that only have `train` and `evaluate`: the strategy in whose scope these are called.
      checkpointer: Where to save and restore.
      checkpoint_manager: Another name for `checkpointer`.
      tracker: Where logs go.
      summary_dir: Instead of a tracker: the directory for TensorBoard events of training.
      eval_summary_dir: The directory for those of evaluations; None for `validation` in `summary_dir`.
      train_actions: Called with the logs of each window, before anything is saved.
      eval_actions: Called with the logs of each evaluation.
      hooks: Further participants, see `everstep.loop.hooks`; called after the actions, in their order.
      enable_async_checkpointing: Always on, whatever is passed.
      summary_manager: Not supported; must be None.
      eval_summary_manager: Not supported; must be None.
      **options: Other arguments of `everstep.loop.Controller`: `steps_per_loop`, `checkpoint_interval`,
        `checkpoint_seconds`, `save_failure`, `summary_interval`, `schedule`, `recovery`, `stop_requested`,
        `stop_agreed`, `request_stop`.

    Attributes:
      train_actions: The actions after each window; more can be added before training.
      eval_actions: The actions after each evaluation.
    """

    def __init__(
        self,
        *,
        trainer: Any = None,
        evaluator: Any = None,
        global_step: Any = None,
        strategy: Any = None,
        checkpointer: Checkpointer | None = None,
        checkpoint_manager: Checkpointer | None = None,
        tracker: Tracker | None = None,
        summary_dir: str | os.PathLike[str] | None = None,
        eval_summary_dir: str | os.PathLike[str] | None = None,
        train_actions: Iterable[loop.Action] = (),
        eval_actions: Iterable[loop.Action] = (),
        hooks: Iterable[loop.Hook] = (),
        enable_async_checkpointing: bool = True,
        summary_manager: None = None,
        eval_summary_manager: None = None,
        **options: Any,
    ) -> None:
        for name, manager in {"summary_manager": summary_manager, "eval_summary_manager": eval_summary_manager}.items():
            if manager is not None:
                raise UsageError("is not supported", key=name, remedy="pass summary_dir=… or tracker=…")
        if trainer is not None or evaluator is not None:
            trainer, evaluator = inner_loops(trainer, evaluator, global_step, strategy)
        actions = loop.Actions(train_actions, eval_actions)
        self.train_actions, self.eval_actions = actions.train, actions.evaluation
        super().__init__(
            trainer=trainer,
            evaluator=evaluator,
            checkpointer=_checkpointer(checkpointer, checkpoint_manager),
            tracker=_tracker(tracker, summary_dir, eval_summary_dir),
            hooks=[actions, *hooks],
            **options,
        )


def _checkpointer(checkpointer: Checkpointer | None, manager: Any) -> Checkpointer | None:
    """Returns the checkpointer, which may be passed by either name."""
    if manager is None:
        return checkpointer
    if checkpointer is not None:
        raise UsageError("is another name for checkpointer", key="checkpoint_manager", remedy="pass one of them")
    if not isinstance(manager, Checkpointer):
        reason = f"expected a Checkpointer, received a {type(manager).__name__}"
        remedy = "everstep.checkpoint.orbax.OrbaxCheckpointer(directory) is one"
        raise UsageError(reason, key="checkpoint_manager", remedy=remedy)
    return manager


def _tracker(tracker: Tracker | None, summary_dir: Any, eval_summary_dir: Any) -> Tracker | None:
    """Returns the tracker, or one that writes TensorBoard events where orbit does."""
    if summary_dir is None and eval_summary_dir is None:
        return tracker
    if tracker is not None:
        raise UsageError("creates a tracker, and one is passed", key="summary_dir", remedy="pass one of them")
    folder = os.path.abspath(summary_dir if summary_dir is not None else eval_summary_dir)
    return TensorBoardTracker(
        folder,
        validation_subdir="validation" if eval_summary_dir is None else os.path.abspath(eval_summary_dir),
        train_subdir=".",
    )
