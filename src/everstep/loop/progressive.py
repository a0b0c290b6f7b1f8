"""Progressive training: larger images, more regularisation, another model, stage by stage.

A task that is a `ProgressivePolicy` as well is trained in stages. A stage ends with the window in which its last step
lies, and with everything that belongs to it: it is logged, evaluated and saved as it was trained. The next window
begins in the next stage: variables that are still there with the same shape go on, those of the optimizer too, unless
the policy says that its models come ready.

A checkpoint says which stage it is of; a run that goes on builds that stage before it reads the variables.
"""

import abc
import contextlib
import dataclasses
import logging
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from everstep.loop import random_state
from everstep.loop.lazy_logs import LazyLogs
from everstep.loop.trainer import Trainer
from everstep.task.optim.ema import averaged_keys
from everstep.task.task import Task
from everstep.types import State

logger = logging.getLogger(__name__)

_LEVELS = re.compile(r"optimizer/(?:inner/)*")
_LASTING = ("model/", "optimizer/", "task.")


class ProgressivePolicy(abc.ABC):
    """What each stage trains, and for how long; a task derives from it and from `Task`.

    Example:
        class Growing(everstep.ProgressivePolicy, MnistTask):
            def num_stages(self): return 2
            def num_steps(self, stage): return 1000
            def get_model(self, stage, old_model=None): return self.build_model()
            def get_train_dataset(self, stage): return images_of_size(14 if stage == 0 else 28)
    """

    @abc.abstractmethod
    def num_stages(self) -> int:
        """Returns how many stages there are."""

    @abc.abstractmethod
    def num_steps(self, stage: int) -> int:
        """Returns how many steps a stage has; training beyond the last one's stays in it."""

    @abc.abstractmethod
    def get_model(self, stage: int, old_model: keras.Model | None = None) -> keras.Model:
        """Returns the model of a stage.

        What it returns is the shape of the model. Variables that the stage before had under the same key (the name of
        the layer, numbered from the model's first) with the same shape then get the values they had there, over what
        was set here; `carries` keeps them off.

        Args:
          stage: Its number, from 0 on.
          old_model: The model of the stage before, with what it has learned. None in the first stage, and where a run
            goes on from a checkpoint, which has all values: the model must then have the same variables.
        """

    def carries(self, stage: int) -> bool:
        """Returns whether variables that still fit go on into a stage.

        False for a policy whose `get_model` makes the new model of the old one, such as by copying a layer: it is
        trained as it was returned, and the optimizer remembers nothing but the number of steps.
        """
        return True

    def get_optimizer(self, stage: int) -> keras.Optimizer | None:
        """Returns a stage's own optimizer, which begins with its own learning rate; None for the configured one."""
        return None

    def get_train_dataset(self, stage: int) -> Any:
        """Returns a stage's own training data; None for what `build_inputs` returns."""
        return None

    def get_eval_dataset(self, stage: int) -> Any:
        """Returns a stage's own validation data; None for what `build_inputs` returns."""
        return None

    def stage_at(self, step: int) -> int:
        """Returns the stage that the step with this index belongs to."""
        end = 0
        for stage in range(self.num_stages()):
            end += self.num_steps(stage)
            if step < end:
                return stage
        return self.num_stages() - 1


class ProgressiveTrainer(Trainer):
    """Trains the stages of a policy, one after the other.

    Attributes:
      stage: The stage it is in.
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
        """Trains `num_steps` steps in one stage: the one in which the window begins."""
        stage = self.task.stage_at(self.global_step)
        if new_window and stage != self.stage:
            self._grow(stage)
        return super().train(num_steps, new_window=new_window, **call)

    def state(self, into: State | None = None) -> tuple[State, dict[str, Any]]:
        """Returns what must resume together; the stage, too."""
        state, meta = super().state(into)
        return state, {**meta, "stage": self.stage}

    def restore(self, state: State, meta: dict[str, Any]) -> None:
        """Continues from what `state` returned: builds the stage first, then reads the variables."""
        if meta.get("stage", 0) != self.stage:
            self._enter(meta["stage"], old_model=None)
        super().restore(state, meta)

    def _grow(self, stage: int) -> None:
        """Goes on in another stage with all that is still there."""
        before, epoch, optimizer = self.engine.state(), self.epoch, self.optimizer
        self._enter(stage, self.model)
        same_kind = _kind(optimizer) is _kind(self.optimizer)
        carrying = Carrying(weights=self.task.carries(stage), slots=same_kind, rate=not self._own_optimizer)
        state, carried, variables = carry(before, self.engine.state(), carrying)
        self.engine.load(state)
        self.engine.reset("train")
        if self._train_feed is not None:
            self._train_feed.restore({"epoch": epoch + 1, "batch": 0})  # another order than the stage before had
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
            self._join(
                self.task.get_train_dataset(stage) if self._trains else None,
                self.task.get_eval_dataset(stage) if self._evaluates else None,
            )


@contextlib.contextmanager
def _seeded(seed: int, stage: int) -> Iterator[None]:
    """What is made inside the block depends on seed and stage alone; the numbers of user code go on as they were."""
    before = random_state.get()
    keras.utils.set_random_seed((seed + 1_000_003 * stage) % 2**32)
    try:
        yield
    finally:
        random_state.set(before)


def _kind(optimizer: Any) -> type:
    """Returns the class of the optimizer that updates the weights, whatever it is wrapped in."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return type(optimizer)


def is_progressive(task: Task) -> bool:
    """Whether a task is trained in stages."""
    return isinstance(task, ProgressivePolicy)


@dataclasses.dataclass(frozen=True)
class Carrying:
    """What goes on beside the number of steps, which always does.

    Attributes:
      weights: What the model has learned, its averages, and what the optimizer remembers of it.
      slots: That last part; not where another kind of optimizer begins, which would take it for something else.
      rate: The learning rate, where it is no schedule; not where a stage has an optimizer of its own.
    """

    weights: bool = True
    slots: bool = True
    rate: bool = True

    def takes(self, key: str) -> bool:
        """Whether the variable with this key goes on."""
        if not key.startswith("optimizer/") or averaged_keys([key]):
            return self.weights
        name = key.rpartition("/")[2]
        if name in ("iteration", "learning_rate"):
            return self.rate or name == "iteration"
        return self.weights and self.slots


def carry(before: State, fresh: State, carrying: Carrying) -> tuple[State, int, int]:
    """Returns the state in which a stage begins, and how many of how many variables in it go on.

    Averages of weights that nobody averaged before begin as those weights.

    Args:
      before: The state of the stage before.
      fresh: The state of this one as it was built.
      carrying: What goes on.
    """
    lasting = [key for key in fresh if key.startswith(_LASTING)]
    then, now = _middle(before), _middle(fresh)
    former = {key: before.get(_former_key(key, then, now)) for key in lasting if carrying.takes(key)}
    carried = {key: array for key, array in former.items() if array is not None and _fits(array, fresh[key])}
    state = {**fresh, **carried}
    begun = {mean: state[weight] for mean, weight in averaged_keys(fresh).items() if mean not in carried}
    return {**state, **begun}, len(carried), len(lasting)


def _middle(state: State) -> str:
    """Returns what the keys of the optimizer in the middle begin with."""
    return max((match[0] for key in state if (match := _LEVELS.match(key))), key=len, default="optimizer/")


def _former_key(key: str, then: str, now: str) -> str:
    """Returns the key that a variable had in the stage before; empty where no such optimizer was around."""
    if not key.startswith("optimizer/") or then == now:
        return key
    return then + key.removeprefix(now) if key.startswith(now) else ""


def _fits(array: np.ndarray, other: np.ndarray) -> bool:
    return (array.shape, array.dtype) == (other.shape, other.dtype)
