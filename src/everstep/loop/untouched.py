"""`Untouched`: says which weights and metrics no step changes, because their numbers look like results.

Tracing shows which variables the steps assign. Where no weight and no optimizer is among them, or no variable of a
metric, the first window and the first evaluation are watched: a step may change what tracing does not show.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

import keras

from everstep.engine import Engine

logger = logging.getLogger(__name__)

Suspects = Mapping[str, list[str]]
"""The keys of variables that should have changed, by what to say if they have not."""


class Untouched:
    """Watches what the traced steps of an engine do not change.

    Args:
      engine: The engine, which is built.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._suspects: dict[str, Suspects] = {
            kind: {**(self._weights() if kind == "train" else {}), **self._metrics(kind)} for kind in engine.windows
        }

    def begin(self, kind: str) -> Callable[[], None]:
        """Begins to watch steps of `train` or `validation`, the first time; returns what to call after them."""
        suspects = self._suspects.pop(kind, {})
        keys = [key for suspected in suspects.values() for key in suspected]
        before = self._engine.checksums(keys)

        def end() -> None:
            after = self._engine.checksums(keys)
            for message, suspected in suspects.items():
                if all(before[key] == after[key] for key in suspected):
                    logger.warning("%s", message)

        return end

    def _weights(self) -> Suspects:
        """Returns the weights that are trained, if no step assigns any of them, or anything in an optimizer.

        Of a model whose weights are all frozen it returns those, if no step assigns any of them.
        """
        engine = self._engine
        weights = self._keys(engine.model.trainable_variables)
        frozen = self._keys(engine.model.weights)
        if not weights and frozen and engine.unassigned.issuperset(frozen):
            return {"the model has no trainable weights, so the first steps have changed none": frozen}
        updated = self._keys(variable for optimizer in engine.optimizers for variable in optimizer.variables)
        if not weights or not engine.unassigned.issuperset([*weights, *updated]):
            return {}
        return {
            "the first steps have changed no weight: train_step does not apply the optimizer, as "
            "optimizer.apply(grads, model.trainable_variables) does": weights
        }

    def _metrics(self, kind: str) -> Suspects:
        """Returns the variables of each metric of a window of which no step assigns any."""
        engine, window, step = self._engine, self._engine.windows[kind], _STEPS[kind]
        if window.reduction == "last":
            return {}  # its logs are what the step returned
        keys = {metric.name: self._keys(metric.variables) for metric in window.metrics}
        return {
            f"no step has updated the metric {name!r}, which is logged nevertheless: update it in {step}, or leave it "
            "out of build_metrics": held
            for name, held in keys.items()
            if held and engine.unassigned.issuperset(held)
        }

    def _keys(self, variables: Iterable[keras.Variable]) -> list[str]:
        wanted = {id(variable) for variable in variables}
        return [key for key, variable in self._engine.variables.items() if id(variable) in wanted]


_STEPS = {"train": "train_step", "validation": "validation_step"}
