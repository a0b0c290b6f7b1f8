"""The actions that the trainer's section of a configuration asks for."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.actions import metrics
from everstep.actions.best_checkpoint import KEY, maybe_create_best_ckpt_exporter
from everstep.actions.early_stopping import EarlyStopping
from everstep.actions.ema_checkpointing import EMACheckpointing
from everstep.actions.registry import make_actions
from everstep.checkpoint.checkpointer import SaveError
from everstep.errors import UsageError
from everstep.loop.controller import Action
from everstep.optim.ema import find_average
from everstep.types import State

logger = logging.getLogger(__name__)


def get_train_actions(params: Any, trainer: Any, model_dir: storage.PathLike) -> list[Action]:
    """Returns what `trainer.train_actions` lists.

    What is done when the loss goes bad is no action: the controller does that itself, before anything is saved.

    Raises:
      UsageError: One of them cannot be made; with its key path.
    """
    context = {"params": params, "trainer": trainer, "model_dir": str(model_dir)}
    return make_actions(params.trainer.train_actions, "trainer.train_actions", context)


def get_eval_actions(params: Any, trainer: Any, model_dir: storage.PathLike) -> list[Action]:
    """Returns what `trainer.eval_actions` lists; before it, where the optimizer averages weights, what writes them.

    Raises:
      UsageError: One of them cannot be made; with its key path.
    """
    context = {"params": params, "trainer": trainer, "model_dir": str(model_dir)}
    averaged = find_average(trainer.optimizer) is not None
    own: list[Action] = [EMACheckpointing(Path(model_dir) / "ema_checkpoints", trainer)] if averaged else []
    return [*own, *make_actions(params.trainer.eval_actions, "trainer.eval_actions", context)]


class ConfiguredActions:
    """All actions of a run that its configuration asks for; what the run's own remember is a part of its state.

    Whether the best weights are kept, and when a run that gets no better ends, may change when a run goes on. So these
    two are no strangers' actions, which have to be the same in each attempt: what one of them remembers is put back if
    it is still there.

    Args:
      params: The experiment's configuration.
      trainer: Trains and evaluates.
      model_dir: The run directory.
      mode: What the run is to do; a single evaluation changes nothing in the directory.

    Attributes:
      train_actions: To be called after each loop.
      eval_actions: To be called after each evaluation.

    Raises:
      UsageError: One of them cannot be made, or looks at a metric that no evaluation will have.
    """

    name = "configured_actions"

    def __init__(self, params: Any, trainer: Any, model_dir: storage.PathLike, mode: str) -> None:
        self._own: dict[str, Any] = {}
        self._controller: Any = None
        own: list[Action] = []
        if "eval" in mode and mode != "eval":
            own += self._best(params, trainer, model_dir)
        if "train" in mode:
            own += self._early_stopping(params.trainer.early_stopping, trainer, mode)
        self.train_actions = get_train_actions(params, trainer, model_dir)
        self.eval_actions = [*own, *get_eval_actions(params, trainer, model_dir)]
        if self._own or find_average(trainer.optimizer):
            self.eval_actions.insert(0, _function(self._settle))

    def join(self, controller: Any) -> None:
        """Hands the controller to whatever wants to know it: actions that have `set_controller`."""
        self._controller = controller
        for action in (*self._own.values(), *controller.train_actions, *controller.eval_actions):
            if hasattr(action, "set_controller"):
                action.set_controller(controller)

    def get(self) -> tuple[State, dict[str, Any]]:
        """Returns what the run's own actions have to remember."""
        return {}, {name: action.get_state() for name, action in self._own.items()}

    def prepare(self, meta: Mapping[str, Any]) -> None:
        """Takes whatever there is."""

    def set(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Goes on from what `get` returned, as far as it is still wanted."""
        for name, action in self._own.items():
            if name in meta:
                action.set_state(meta[name])

    def _settle(self, logs: Mapping[str, Any]) -> None:
        """Waits for the checkpoint that is being written: Orbax cannot write two things at once in one process."""
        try:
            self._controller.checkpointer.wait()
        except SaveError as error:
            if self._controller.saver.failure == "stop":
                raise
            logger.error("%s; training goes on", error)

    def _best(self, params: Any, trainer: Any, model_dir: storage.PathLike) -> list[Action]:
        exporter = maybe_create_best_ckpt_exporter(params, model_dir)
        if exporter is None:
            return []
        metrics.require_known(trainer, exporter.metric, KEY)
        self._own["best_checkpoint"] = exporter
        return [_function(lambda logs: exporter.maybe_export_checkpoint(trainer, logs, trainer.global_step))]

    def _early_stopping(self, config: Any, trainer: Any, mode: str) -> list[Action]:
        if not config.metric:
            return []
        if mode != "train_and_eval":
            raise UsageError(
                f"trainer.early_stopping.metric: received {config.metric!r}, but mode {mode!r} does not evaluate on "
                "its way: use train_and_eval, or leave it empty"
            )
        key = "trainer.early_stopping.metric"
        metrics.require_known(trainer, config.metric, key)
        stopping = EarlyStopping(config.metric, config.mode, config.patience, config.min_delta, key)
        self._own["early_stopping"] = stopping
        return [_function(stopping)]


def _function(action: Callable[[Any], Any]) -> Action:
    """Returns an action that is nothing but a function: the controller looks for no state of its own in it."""

    def act(logs: Mapping[str, Any]) -> None:
        action(logs)

    return act
