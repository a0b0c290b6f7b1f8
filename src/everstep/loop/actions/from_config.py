"""The actions that are configured in the trainer's section."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.loop.action_hook import Action
from everstep.loop.actions import metrics
from everstep.loop.actions.best_checkpoint import KEY, maybe_create_best_ckpt_exporter
from everstep.loop.actions.early_stopping import EarlyStopping
from everstep.loop.actions.registry import make_actions
from everstep.loop.actions.weights import EMACheckpointing, maybe_create_exported_copies
from everstep.loop.callback_state import CallbackState, owners
from everstep.loop.hooks import Hook
from everstep.task.optim import find_average
from everstep.types import State

logger = logging.getLogger(__name__)


def get_train_actions(params: Any, trainer: Any, model_dir: storage.PathLike) -> list[Action]:
    """Returns the actions listed in `trainer.train_actions`.

    Recovery from divergence is not an action: the controller does it, before anything is saved.

    Raises:
      UsageError: One of them cannot be created; names its key.
    """
    context = {"params": params, "trainer": trainer, "model_dir": str(model_dir)}
    return make_actions(params.trainer.train_actions, "trainer.train_actions", context)


def get_eval_actions(params: Any, trainer: Any, model_dir: storage.PathLike) -> list[Action]:
    """Returns the actions of `trainer.eval_actions`, and before them, if the optimizer averages, `EMACheckpointing`.

    Raises:
      UsageError: One of them cannot be created; names its key.
    """
    context = {"params": params, "trainer": trainer, "model_dir": str(model_dir)}
    own: list[Action] = []
    if find_average(trainer.optimizer) is not None:
        failure = params.trainer.save_failure
        own = [EMACheckpointing(Path(model_dir) / "ema_checkpoints", trainer, failure=failure)]
    return [*own, *make_actions(params.trainer.eval_actions, "trainer.eval_actions", context)]


class ConfiguredActions(Hook):
    """All configured actions of a run; their state is part of the run's state.

    The settings of the best weights and of early stopping may change when a run is resumed: the state of each is
    restored if it is still configured. For listed actions see `_ListedActions`.

    Args:
      params: The experiment's configuration.
      trainer: The trainer that trains and evaluates.
      model_dir: The run directory.
      mode: The mode of the run; a single evaluation changes nothing in the directory.

    Attributes:
      train_actions: The actions after each loop.
      eval_actions: The actions after each evaluation.
      last_actions: The actions after all others, of either list: others may stop training.

    Raises:
      UsageError: One of them cannot be created, or needs a metric that no evaluation will have.
    """

    name = "configured_actions"

    def __init__(self, params: Any, trainer: Any, model_dir: storage.PathLike, mode: str) -> None:
        self._own: dict[str, Any] = {}
        own: list[Action] = []
        if "eval" in mode and mode != "eval":
            own += self._best(params, trainer, model_dir)
        if "train" in mode:
            own += self._early_stopping(params.trainer.early_stopping, trainer, mode)
            copies = maybe_create_exported_copies(params.trainer, trainer, model_dir)
            self._own |= {"exported_copies": copies} if copies is not None else {}
        train, evaluation = get_train_actions(params, trainer, model_dir), get_eval_actions(params, trainer, model_dir)
        self._actions = [*train, *evaluation]
        self._lists = {
            name: _ListedActions(f"trainer.{name}", entries, actions[len(actions) - len(entries) :], self.name)
            for name, entries, actions in (
                ("train_actions", params.trainer.train_actions, train),
                ("eval_actions", params.trainer.eval_actions, evaluation),  # the last ones: the average's comes first
            )
        }
        self.train_actions = [_function(action) for action in train]
        self.eval_actions = [*own, *(_function(action) for action in evaluation)]
        self.last_actions = [_function(self._own["exported_copies"])] if "exported_copies" in self._own else []

    def setup(self, controller: Any) -> None:
        """Passes the controller to the configured actions that have `set_controller`."""
        for action in (*self._own.values(), *self._actions):
            if hasattr(action, "set_controller"):
                action.set_controller(controller)

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns the state of the actions."""
        arrays: State = {}
        metas = {name: action.get_state() for name, action in self._own.items()}
        for name, listed in self._lists.items():
            own, meta = listed.state()
            arrays |= own
            metas |= {name: meta} if meta else {}
        return arrays, metas

    def check(self, meta: Mapping[str, Any]) -> None:
        """Checks that listed actions of the same names are the same.

        Raises:
          UsageError: They are not; names the differences.
        """
        for name, listed in self._lists.items():
            listed.check(meta.get(name, {}))

    def restore(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Restores what `state` returned, as far as it is still configured."""
        for name, action in self._own.items():
            if name in meta:
                action.set_state(meta[name])
        for name, listed in self._lists.items():
            listed.restore(arrays, meta.get(name, {}))

    def _best(self, params: Any, trainer: Any, model_dir: storage.PathLike) -> list[Action]:
        config, exporter = params.trainer, maybe_create_best_ckpt_exporter(params, model_dir)
        metric = config.best_checkpoint_eval_metric
        if exporter is None and not config.keep_best:
            return []
        metrics.require_known(trainer, metric, KEY)
        if exporter is None:  # every evaluation must have the metric by which checkpoints are kept
            return [_function(lambda logs: metrics.value_of(logs, metric, KEY))]
        self._own["best_checkpoint"] = exporter
        return [_function(lambda logs: exporter.maybe_export_checkpoint(trainer, logs, trainer.global_step))]

    def _early_stopping(self, config: Any, trainer: Any, mode: str) -> list[Action]:
        if not config.metric:
            return []
        key = "trainer.early_stopping.metric"
        if mode != "train_and_eval":
            reason = f"but mode '{mode}' does not evaluate during training"
            raise UsageError(reason, key=key, received=config.metric, remedy="use train_and_eval, or remove it")
        metrics.require_known(trainer, config.metric, key)
        stopping = EarlyStopping(config.metric, config.mode, config.patience, config.min_delta, key)
        self._own["early_stopping"] = stopping
        return [_function(stopping)]


_NOTHING: Mapping[str, Any] = {"names": [], "actions": {}}


class _ListedActions:
    """The state of the actions of a list, over all attempts of a run.

    The list cannot change when a run is resumed unless the user allows it. Then the actions that are still listed are
    restored, and the others start from scratch.

    Args:
      key: The key of the list, such as `trainer.eval_actions`.
      entries: The entries of the list.
      actions: The actions created from them.
      place: The prefix of their arrays in a checkpoint.
    """

    def __init__(self, key: str, entries: Sequence[Any], actions: Sequence[Any], place: str) -> None:
        self._key = key
        # The names alone: arguments may hold secrets.
        self._names = [entry if isinstance(entry, str) else str(entry["_target_"]) for entry in entries]
        self._state = CallbackState(owners(actions), f"{place}/{key}")

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns arrays, and names and states of the actions; nothing if the list is empty."""
        arrays, actions = self._state.state()
        return arrays, {"names": self._names, "actions": actions} if self._names else {}

    def check(self, meta: Mapping[str, Any]) -> None:
        """Checks that actions of the same names are the same.

        Raises:
          UsageError: They are not; names the differences.
        """
        saved = meta or _NOTHING
        if saved["names"] == self._names:
            self._state.check(saved["actions"])

    def restore(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Restores what `state` returned, as far as it is still listed."""
        saved = meta or _NOTHING
        if saved["names"] == self._names:
            self._state.restore(arrays, saved["actions"])
        elif new := self._state.restore_known(arrays, saved["actions"]):
            logger.warning("%s has changed: %s starts from scratch", self._key, ", ".join(new))


def _function(action: Callable[[Any], Any]) -> Action:
    """Returns a plain function that calls an action, so that the controller does not save its state a second time."""

    def act(logs: Mapping[str, Any]) -> None:
        action(logs)

    return act
