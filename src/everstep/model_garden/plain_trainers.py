"""Objects that only have `train(num_steps)` and `evaluate(num_steps)`, as orbit's users write them, for a `Controller`.

What such an object keeps in its attributes is its state: models, optimizers, metrics, Keras and TensorFlow variables.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from everstep.engine import state as states
from everstep.engine import tensorflow_variables
from everstep.errors import UsageError
from everstep.loop import InnerLoop
from everstep.types import Logs, OwnState, State


def inner_loops(trainer: Any, evaluator: Any, global_step: Any, strategy: Any) -> tuple[Any, Any]:
    """Returns a trainer and an evaluator that a `Controller` can drive; those that it can already are returned as is.

    Args:
      trainer: Has `train`, or is None.
      evaluator: Has `evaluate`, or is None; may be the same object.
      global_step: The variable that counts steps; None where the object itself has a `global_step`.
      strategy: The strategy in whose scope they run, or None.

    Raises:
      UsageError: `global_step` or `strategy` is passed and not needed, or a plain object has no step.
    """
    main = evaluator if trainer is None else trainer
    if hasattr(main, "state"):
        for name, value in {"global_step": global_step, "strategy": strategy}.items():
            if value is not None:
                reason = "but the trainer counts its steps, and was created in its strategy's scope"
                raise UsageError(reason, key=name, received=value, remedy="remove it")
        own = OwnStateTrainer(main, trainer, evaluator)
        known = (type(None), InnerLoop)
        return trainer if isinstance(trainer, known) else own, evaluator if isinstance(evaluator, known) else own
    holders = {id(one): one for one in (trainer, evaluator) if one is not None}
    plain = PlainTrainer(list(holders.values()), trainer, evaluator, global_step, strategy)
    return plain if trainer is not None else None, plain if evaluator is not None else None


class OwnStateTrainer(InnerLoop):
    """A trainer and an evaluator, one of which has `global_step`, `state` and `restore` of its own.

    Args:
      owner: The one that has them.
      trainer: Has `train`, or is None.
      evaluator: Has `evaluate`, or is None.
    """

    def __init__(self, owner: Any, trainer: Any, evaluator: Any) -> None:
        self._owner, self._trainer, self._evaluator = owner, trainer, evaluator
        self._scope: Any = contextlib.nullcontext
        self._window_logs: Logs = {}  # of the last call of `train`

    @property
    def global_step(self) -> int:  # type: ignore[override]
        """Steps done so far."""
        return int(self._owner.global_step)

    def train(self, num_steps: int, **calls: Any) -> Logs:
        """Calls the trainer; nested logs become flat, `task/accuracy`."""
        with self._scope():
            self._window_logs = dict(_flat(self._trainer.train(num_steps)))
        return dict(self._window_logs)

    def evaluate(self, num_steps: int = -1, **calls: Any) -> Logs:
        """Calls the evaluator; nested logs become flat."""
        with self._scope():
            return dict(_flat(self._evaluator.evaluate(num_steps)))

    def window_logs(self) -> Logs:
        """Returns what the last call of `train` returned, also that of an earlier attempt which did not log it."""
        return dict(self._window_logs)

    def state(self, into: OwnState | None = None) -> tuple[OwnState, dict[str, Any]]:
        """Returns the owner's state."""
        arrays, meta = self._owner.state(into)
        return arrays, {**meta, "window_logs": self._window_logs}

    def restore(self, state: State, meta: dict[str, Any]) -> None:  # type: ignore[override]
        """Restores the owner's state."""
        self._owner.restore(state, meta)
        self._window_logs = meta.get("window_logs", {})


class PlainTrainer(OwnStateTrainer):
    """A plain trainer and a plain evaluator as one object whose state can be saved.

    Args:
      holders: The objects whose attributes hold the state.
      trainer: Has `train`, or is None.
      evaluator: Has `evaluate`, or is None.
      global_step: The variable that counts steps; None where one of the objects has a `global_step`.
      strategy: The strategy in whose scope they run, or None.
    """

    def __init__(self, holders: list[Any], trainer: Any, evaluator: Any, global_step: Any, strategy: Any) -> None:
        super().__init__(None, trainer, evaluator)
        self._holders = holders
        self._scope = contextlib.nullcontext if strategy is None else strategy.scope
        self._counter = next((holder for holder in holders if hasattr(holder, "global_step")), None)
        self._global_step = global_step
        if global_step is None and self._counter is None:
            raise UsageError(
                "does not count its steps",
                key=type(holders[0]).__name__,
                remedy="give it a global_step, or pass Controller(global_step=optimizer.iterations)",
            )

    @property
    def global_step(self) -> int:  # type: ignore[override]
        """Steps done so far."""
        step = self._counter.global_step if self._global_step is None else self._global_step  # type: ignore[union-attr]
        return int(_array(step))

    def state(self, into: OwnState | None = None) -> tuple[OwnState, dict[str, Any]]:
        """Returns the variables that the objects hold; the step, and the logs of the last call of `train`."""
        former = into or {}
        arrays = {key: states.own(_array(value), former.get(key)) for key, value in self._variables().items()}
        return arrays, {"step": self.global_step, "window_logs": self._window_logs}

    def restore(self, state: State, meta: dict[str, Any]) -> None:  # type: ignore[override]
        """Restores what `state` returned: all of it for training, for evaluation only what the objects hold.

        Raises:
          UsageError: It does not fit; nothing was changed.
        """
        here = self._variables()
        given = state if self._trainer is not None else {key: value for key, value in state.items() if key in here}
        missing, unexpected = sorted(set(here) - set(given)), sorted(set(given) - set(here))
        shapes = [key for key in set(here) & set(given) if tuple(here[key].shape) != tuple(given[key].shape)]
        if missing or unexpected or shapes:
            raise UsageError(
                f"the checkpoint does not fit its variables (not in the checkpoint: {_listed(missing)}; only in the "
                f"checkpoint: {_listed(unexpected)}; with another shape: {_listed(shapes)})",
                key=type(self._holders[0]).__name__,
                remedy="build the model and the optimizer first: optimizer.build(model.trainable_variables)",
            )
        for key, variable in here.items():
            variable.assign(given[key].astype(str(keras.backend.standardize_dtype(variable.dtype))))
        if self._global_step is None and isinstance(self._counter.global_step, int):  # type: ignore[union-attr]
            self._counter.global_step = int(meta["step"])  # type: ignore[union-attr]
        self._window_logs = meta.get("window_logs", {})

    def _variables(self) -> dict[str, Any]:
        """Returns the variables in the objects' attributes by key; optimizers come last, after what they update."""
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
