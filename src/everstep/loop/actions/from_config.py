"""The actions that the trainer's section of a configuration asks for."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.loop.actions import metrics
from everstep.loop.actions.best_checkpoint import KEY, maybe_create_best_ckpt_exporter
from everstep.loop.actions.early_stopping import EarlyStopping
from everstep.loop.actions.ema_checkpointing import EMACheckpointing
from everstep.loop.actions.exported_copies import maybe_create_exported_copies
from everstep.loop.actions.registry import make_actions
from everstep.loop.callback_state import CallbackState, owners
from everstep.loop.controller import Action
from everstep.loop.hooks import Hook
from everstep.task.optim.ema import find_average
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
    own: list[Action] = []
    if find_average(trainer.optimizer) is not None:
        failure = params.trainer.save_failure
        own = [EMACheckpointing(Path(model_dir) / "ema_checkpoints", trainer, failure=failure)]
    return [*own, *make_actions(params.trainer.eval_actions, "trainer.eval_actions", context)]


class ConfiguredActions(Hook):
    """All actions of a run that its configuration asks for; what they remember is a part of its state.

    Whether the best weights are kept, and when a run that gets no better is stopped, may change when a run is resumed:
    what one of these two remembers is restored if it is still there. Those that are listed: see `_ListedActions`.

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
        own: list[Action] = []
        if "eval" in mode and mode != "eval":
            own += self._best(params, trainer, model_dir)
        if "train" in mode:
            own += self._early_stopping(params.trainer.early_stopping, trainer, mode)
            copies = maybe_create_exported_copies(params.trainer, trainer, model_dir)
            self._own |= {"exported_copies": copies} if copies is not None else {}
        train, evaluation = get_train_actions(params, trainer, model_dir), get_eval_actions(params, trainer, model_dir)
        self._made = [*train, *evaluation]
        self._lists = {
            name: _ListedActions(f"trainer.{name}", entries, actions[len(actions) - len(entries) :], self.name)
            for name, entries, actions in (
                ("train_actions", params.trainer.train_actions, train),
                ("eval_actions", params.trainer.eval_actions, evaluation),  # the last ones: the average's comes first
            )
        }
        self.train_actions = [_function(action) for action in train]
        self.eval_actions = [*own, *(_function(action) for action in evaluation)]

    def setup(self, controller: Any) -> None:
        """Gives the controller to all actions that have `set_controller`."""
        if (copies := self._own.get("exported_copies")) is not None:  # the last of all: others may end training
            for actions in (controller.train_actions, controller.eval_actions):
                actions.append(_function(copies))
        for action in (*self._own.values(), *self._made, *controller.train_actions, *controller.eval_actions):
            if hasattr(action, "set_controller"):
                action.set_controller(controller)

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns what the actions have to remember."""
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
          UsageError: They are others; says which.
        """
        for name, listed in self._lists.items():
            listed.check(meta.get(name, {}))

    def restore(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Continues from what `state` returned, as far as it is still configured."""
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
        if exporter is None:  # which checkpoints are the best, each evaluation has to say
            return [_function(lambda logs: metrics.value_of(logs, metric, KEY))]
        self._own["best_checkpoint"] = exporter
        return [_function(lambda logs: exporter.maybe_export_checkpoint(trainer, logs, trainer.global_step))]

    def _early_stopping(self, config: Any, trainer: Any, mode: str) -> list[Action]:
        if not config.metric:
            return []
        key = "trainer.early_stopping.metric"
        if mode != "train_and_eval":
            reason = f"but mode '{mode}' does not evaluate on its way"
            raise UsageError(reason, key=key, received=config.metric, remedy="use train_and_eval, or remove it")
        metrics.require_known(trainer, config.metric, key)
        stopping = EarlyStopping(config.metric, config.mode, config.patience, config.min_delta, key)
        self._own["early_stopping"] = stopping
        return [_function(stopping)]


_NOTHING: Mapping[str, Any] = {"names": [], "actions": {}}


class _ListedActions:
    """What the actions of a list remember, over all attempts of a run.

    The list cannot change when a run is resumed unless the user allows it. Then those that are still listed continue,
    and the others start from scratch.

    Args:
      key: Where they are listed, such as `trainer.eval_actions`.
      entries: What is listed there.
      actions: What was made of it.
      place: Where their arrays are in a checkpoint.
    """

    def __init__(self, key: str, entries: Sequence[Any], actions: Sequence[Any], place: str) -> None:
        self._key = key
        # The names alone: arguments may hold secrets.
        self._names = [entry if isinstance(entry, str) else str(entry["_target_"]) for entry in entries]
        self._memory = CallbackState(owners(actions), f"{place}/{key}")

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns arrays, and what else is to be remembered; nothing where nothing is listed."""
        arrays, actions = self._memory.state()
        return arrays, {"names": self._names, "actions": actions} if self._names else {}

    def check(self, meta: Mapping[str, Any]) -> None:
        """Checks that actions of the same names are the same.

        Raises:
          UsageError: They are others; says which.
        """
        saved = meta or _NOTHING
        if saved["names"] == self._names:
            self._memory.check(saved["actions"])

    def restore(self, arrays: State, meta: Mapping[str, Any]) -> None:
        """Continues from what `state` returned, as far as it is still listed."""
        saved = meta or _NOTHING
        if saved["names"] == self._names:
            self._memory.restore(arrays, saved["actions"])
        elif anew := self._memory.restore_known(arrays, saved["actions"]):
            logger.warning("%s has changed: %s starts from scratch", self._key, ", ".join(anew))


def _function(action: Callable[[Any], Any]) -> Action:
    """Returns an action that is nothing but a function: the controller looks for no state of its own in it."""

    def act(logs: Mapping[str, Any]) -> None:
        action(logs)

    return act
