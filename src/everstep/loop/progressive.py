"""Progressive training: larger images, more regularisation, another model, stage by stage.

A task that is a `ProgressivePolicy` as well is trained in stages. A stage ends with the window that contains its last
step, which is logged, evaluated and saved in that stage. The next window begins in the next stage: variables with the
same key and shape keep their values, those of the optimizer too, unless the policy declines that with `carries`.

A checkpoint holds its stage; a resumed run builds that stage before it restores the variables.
"""

import abc
import contextlib
import dataclasses
import logging
import re
from collections.abc import Collection, Iterator
from typing import Any

import keras

from everstep.loop import random_state
from everstep.loop.lazy_logs import LazyLogs
from everstep.loop.trainer import Trainer
from everstep.task import Task
from everstep.task.optim import averaged_keys
from everstep.types import OwnState, State, StoredState

logger = logging.getLogger(__name__)

_LEVELS = re.compile(r"optimizer/(?:inner/)*")
_CARRIED = ("model/", "optimizer/", "task.")  # what the next stage may take over


class ProgressivePolicy(abc.ABC):
    """Defines what each stage trains, and for how long; a task derives from it and from `Task`.

    Example:
        class Growing(everstep.ProgressivePolicy, MnistTask):
            def num_stages(self): return 2
            def num_steps(self, stage): return 1000
            def get_model(self, stage, old_model=None): return self.build_model()
            def get_train_dataset(self, stage): return images_of_size(14 if stage == 0 else 28)
    """

    @abc.abstractmethod
    def num_stages(self) -> int:
        """Returns the number of stages."""

    @abc.abstractmethod
    def num_steps(self, stage: int) -> int:
        """Returns the number of steps of a stage; training beyond the last stage stays in it."""

    @abc.abstractmethod
    def get_model(self, stage: int, old_model: keras.Model | None = None) -> keras.Model:
        """Returns the model of a stage.

        Only its architecture counts. Variables that had the same key (the name of the layer, numbered from the model's
        first) and the same shape in the previous stage get the values they had there, whatever was set here, unless
        `carries` returns False.

        Args:
          stage: The number of the stage, from 0 on.
          old_model: The trained model of the previous stage. None in the first stage, and where a run resumes from a
            checkpoint, which has all values: the model must then have the same variables.
        """

    def carries(self, stage: int) -> bool:
        """Returns whether variables that still fit keep their values in a stage.

        False for a policy whose `get_model` derives the new model from the old one, such as by copying a layer: the
        model is trained as returned, and the optimizer keeps nothing but the number of steps.
        """
        return True

    def get_optimizer(self, stage: int) -> keras.Optimizer | None:
        """Returns the optimizer of a stage, with its own learning rate; None for the configured one."""
        return None

    def get_train_dataset(self, stage: int) -> Any:
        """Returns the training data of a stage; None for what `build_inputs` returns."""
        return None

    def get_eval_dataset(self, stage: int) -> Any:
        """Returns the validation data of a stage; None for what `build_inputs` returns."""
        return None

    def stage_at(self, step: int) -> int:
        """Returns the stage of the step with this index."""
        end = 0
        for stage in range(self.num_stages()):
            end += self.num_steps(stage)
            if step < end:
                return stage
        return self.num_stages() - 1


class ProgressiveTrainer(Trainer):
    """Trains the stages of a policy, one after the other.

    Attributes:
      stage: The current stage.
    """

    task: Any  # a Task and a ProgressivePolicy

    def __init__(
        self,
        config: Any,
        task: Any,
        model: keras.Model | None = None,
        optimizer: keras.Optimizer | None = None,
        train: bool = True,
        evaluate: bool = True,
    ) -> None:
        self.stage = 0
        model = model or task.get_model(0, None)
        optimizer = optimizer or (self._make_optimizer(task, 0, config) if train else None)
        data = task.get_train_dataset(0) if train else None, task.get_eval_dataset(0) if evaluate else None
        super().__init__(config, task, model, optimizer, train, evaluate, *data)

    def train(self, num_steps: int, *, new_window: bool = True, **call: Any) -> LazyLogs:
        """Trains `num_steps` steps in the stage in which the window begins."""
        stage = self.task.stage_at(self.global_step)
        if new_window and stage != self.stage:
            self._advance_to(stage)
        return super().train(num_steps, new_window=new_window, **call)

    def state(self, into: OwnState | None = None, without: Collection[str] = ()) -> tuple[OwnState, dict[str, Any]]:
        """Returns what must resume together, and the stage."""
        state, meta = super().state(into, without)
        return state, {**meta, "stage": self.stage}

    def restore(self, state: StoredState, meta: dict[str, Any]) -> None:
        """Restores what `state` returned: builds the stage first, then restores the variables."""
        if meta.get("stage", 0) != self.stage:
            self._enter(meta["stage"], old_model=None)
        super().restore(state, meta)

    def _advance_to(self, stage: int) -> None:
        """Builds another stage, and carries over the variables that still fit."""
        before, epoch, optimizer = self.engine.state(), self.epoch, self.optimizer
        self._enter(stage, self.model)
        same_kind = _kind(optimizer) is _kind(self.optimizer)
        carrying = Carrying(weights=self.task.carries(stage), slots=same_kind, rate=not self._own_optimizer)
        state, carried, variables = carry(before, self.engine.state(), carrying)
        self.engine.load(state)
        self.engine.reset("train")
        if self._train_feed is not None:
            self._train_feed.restore({"epoch": epoch + 1, "batch": 0})  # another order than in the previous stage
        text = "step %d: stage %d of %d, %d of %d variables carried over"
        logger.warning(text, self.global_step, stage + 1, self.task.num_stages(), carried, variables)

    def _make_optimizer(self, task: Any, stage: int, config: Any) -> keras.Optimizer:
        own = task.get_optimizer(stage)
        self._own_optimizer = own is not None
        return own or task.create_optimizer(config.trainer.optimizer_config, config.runtime)

    def _enter(self, stage: int, old_model: keras.Model | None) -> None:
        if self._train_feed is not None:
            self._train_feed.close()
        self.engine.push()
        self.stage, self._checked = stage, set()
        with _seeded(self.config.runtime.seed, stage):
            self.model = self.task.get_model(stage, old_model)
            if self._trains:
                self.optimizer = self._make_optimizer(self.task, stage, self.config)
            self._build(
                self.task.get_train_dataset(stage) if self._trains else None,
                self.task.get_eval_dataset(stage) if self._evaluates else None,
            )


@contextlib.contextmanager
def _seeded(seed: int, stage: int) -> Iterator[None]:
    """Objects created inside the block depend on seed and stage alone; the generators are restored afterwards."""
    before = random_state.get()
    keras.utils.set_random_seed((seed + 1_000_003 * stage) % 2**32)
    try:
        yield
    finally:
        random_state.set(before)


def _kind(optimizer: Any) -> type:
    """Returns the class of the innermost optimizer, which updates the weights."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return type(optimizer)


def is_progressive(task: Task) -> bool:
    """Whether a task is trained in stages."""
    return isinstance(task, ProgressivePolicy)


@dataclasses.dataclass(frozen=True)
class Carrying:
    """What a stage takes over from the previous one, beside the number of steps, which it always does.

    Attributes:
      weights: The model's variables, their averages, and the optimizer's slots.
      slots: The optimizer's slots; not if the next stage has another kind of optimizer, whose slots mean other things.
      rate: The learning rate, if it is not a schedule; not if the next stage has its own optimizer.
    """

    weights: bool = True
    slots: bool = True
    rate: bool = True

    def takes(self, key: str) -> bool:
        """Whether the variable with this key is carried over."""
        if not key.startswith("optimizer/") or averaged_keys([key]):
            return self.weights
        name = key.rpartition("/")[2]
        if name in ("iteration", "learning_rate"):
            return self.rate or name == "iteration"
        return self.weights and self.slots


def carry(before: State, fresh: State, carrying: Carrying) -> tuple[State, int, int]:
    """Returns the state in which a stage begins, and how many of its variables are carried over, of how many.

    Averages that the previous stage did not have begin with the weights.

    Args:
      before: The last state of the previous stage.
      fresh: The initial state of this stage.
      carrying: What is carried over.
    """
    candidates = [key for key in fresh if key.startswith(_CARRIED)]
    then, now = _innermost(before), _innermost(fresh)
    former = {key: before.get(_former_key(key, then, now)) for key in candidates if carrying.takes(key)}
    carried = {
        key: array
        for key, array in former.items()
        if array is not None and (array.shape, array.dtype) == (fresh[key].shape, fresh[key].dtype)
    }
    state = {**fresh, **carried}
    begun = {mean: state[weight] for mean, weight in averaged_keys(fresh).items() if mean not in carried}
    return {**state, **begun}, len(carried), len(candidates)


def _innermost(state: State) -> str:
    """Returns the prefix of the keys of the innermost optimizer."""
    return max((match[0] for key in state if (match := _LEVELS.match(key))), key=len, default="optimizer/")


def _former_key(key: str, then: str, now: str) -> str:
    """Returns the key that a variable had in the previous stage; empty if that had no such optimizer."""
    if not key.startswith("optimizer/") or then == now:
        return key
    return then + key.removeprefix(now) if key.startswith(now) else ""
