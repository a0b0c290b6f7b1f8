"""Objects that only have `train(num_steps)` and `evaluate(num_steps)`, as orbit's users write them.

What such an object keeps in its attributes is its state: models, optimizers, metrics, Keras and TensorFlow variables.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from everstep.engine import state as states
from everstep.engine.custom_loops import tensorflow_variables
from everstep.errors import UsageError
from everstep.types import Logs, State


def joined(trainer: Any, evaluator: Any, global_step: Any, strategy: Any) -> tuple[Any, Any]:
    """Returns a trainer and an evaluator as a controller needs them; those that can tell their state stay as they are.

    Args:
      trainer: Has `train`, or is None.
      evaluator: Has `evaluate`, or is None; may be the same object.
      global_step: The variable that counts steps; None where the object has a `global_step` itself.
      strategy: In whose scope they run; None for none.

    Raises:
      UsageError: An object needs neither of the last two, or does not say which step it is at.
    """
    if hasattr(evaluator if trainer is None else trainer, "state"):
        for name, value in {"global_step": global_step, "strategy": strategy}.items():
            if value is not None:
                reason = "but the trainer counts its steps, and was created in its strategy's scope"
                raise UsageError(reason, key=name, received=value, remedy="remove it")
        return trainer, evaluator
    holders = {id(one): one for one in (trainer, evaluator) if one is not None}
    plain = PlainTrainer(list(holders.values()), trainer, evaluator, global_step, strategy)
    return plain if trainer is not None else None, plain if evaluator is not None else None


class PlainTrainer:
    """Makes a trainer and an evaluator that know nothing of states into one object whose state can be saved.

    Args:
      holders: The objects in whose attributes the state is.
      trainer: Has `train`, or is None.
      evaluator: Has `evaluate`, or is None.
      global_step: The variable that counts steps; None where one of the objects has a `global_step`.
      strategy: In whose scope they run; None for none.
    """

    def __init__(self, holders: list[Any], trainer: Any, evaluator: Any, global_step: Any, strategy: Any) -> None:
        self._holders, self._trainer, self._evaluator = holders, trainer, evaluator
        self._scope = contextlib.nullcontext if strategy is None else strategy.scope
        self._counter = next((holder for holder in holders if hasattr(holder, "global_step")), None)
        self._global_step = global_step
        if global_step is None and self._counter is None:
            raise UsageError(
                f"{type(holders[0]).__name__} does not say at which step it is",
                remedy="give it a global_step, or pass Controller(global_step=optimizer.iterations)",
            )

    @property
    def global_step(self) -> int:
        """Steps done so far."""
        step = self._counter.global_step if self._global_step is None else self._global_step  # type: ignore[union-attr]
        return int(_array(step))

    def train(self, num_steps: int) -> Logs:
        """Calls the trainer; nested logs become flat, `task/accuracy`."""
        with self._scope():
            return dict(_flat(self._trainer.train(num_steps)))

    def evaluate(self, num_steps: int) -> Logs:
        """Calls the evaluator; nested logs become flat."""
        with self._scope():
            return dict(_flat(self._evaluator.evaluate(num_steps)))

    def window_logs(self) -> Logs:
        """Returns none: what an earlier attempt trained was logged by it."""
        return {}

    def state(self, into: State | None = None) -> tuple[State, dict[str, Any]]:
        """Returns the variables that the objects hold, and the step."""
        former = into or {}
        arrays = {key: states.canonical(_array(value), former.get(key)) for key, value in self._variables().items()}
        return arrays, {"step": self.global_step}

    def restore(self, state: State, meta: dict[str, Any]) -> None:
        """Continues from what `state` returned; all of it to train, what is held here to evaluate only.

        Raises:
          UsageError: It does not fit; nothing was changed.
        """
        here = self._variables()
        given = state if self._trainer is not None else {key: value for key, value in state.items() if key in here}
        missing, unexpected = sorted(set(here) - set(given)), sorted(set(given) - set(here))
        shapes = [key for key in set(here) & set(given) if tuple(here[key].shape) != tuple(given[key].shape)]
        if missing or unexpected or shapes:
            raise UsageError(
                f"the checkpoint does not fit what {type(self._holders[0]).__name__} holds (missing in it: "
                f"{_listed(missing)}; unknown here: {_listed(unexpected)}; of another shape: {_listed(shapes)})",
                remedy="build model and optimizer before, optimizer.build(model.trainable_variables)",
            )
        for key, variable in here.items():
            variable.assign(given[key].astype(str(keras.backend.standardize_dtype(variable.dtype))))
        if self._global_step is None and isinstance(self._counter.global_step, int):  # type: ignore[union-attr]
            self._counter.global_step = int(meta["step"])  # type: ignore[union-attr]

    def _variables(self) -> dict[str, Any]:
        """Returns the variables in the objects' attributes by key; slots of optimizers after what they serve."""
        attributes = {name: value for holder in self._holders for name, value in sorted(vars(holder).items())}
        ordered = sorted(attributes.items(), key=lambda item: isinstance(item[1], keras.Optimizer))
        others = {} if self._global_step is None else {"global_step": self._global_step}
        found = {name: tensorflow_variables(value) for name, value in {**attributes, **others}.items()}
        owners = {f"held.{name}": v for name, v in ordered if states.holds_variables(v) and not found[name]}
        own = {f"held.{name}{below}": v for name, held in found.items() for below, v in held.items()}
        return {**states.collect(owners), **own}


def _array(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))


def _flat(logs: Any, below: str = "") -> Iterator[tuple[str, float]]:
    for name, value in (logs or {}).items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{below}{name}/")
        else:
            yield f"{below}{name}", float(_array(value))


def _listed(keys: list[str]) -> str:
    return f"{', '.join(keys[:5])}{', …' if len(keys) > 5 else ''}" if keys else "nothing"
