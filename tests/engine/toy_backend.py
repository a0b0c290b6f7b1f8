"""A backend for NumPy in one file, outside of the package: what another backend takes.

Keras computes with NumPy where `KERAS_BACKEND=numpy` is set: models, metrics and
optimizers work, one operation at a time. `ToyBackend` makes an engine of that. It has
the eight methods that every backend has and nothing else, because everything else has a
form that is right here: the Keras variables are the state, one device computes, and
Python runs each step.

What NumPy lacks is gradients. `value_and_grad` below takes them from differences of the
loss, which is slow and imprecise, and enough to show what a step needs of it: the loss
is computed once for good, so random layers draw once, and assignments of the forward
pass, such as moving averages, count once.

    from tests.engine.toy_backend import toy_engine

    engine = toy_engine(task, model, optimizer)
    engine.build(batch)
    engine.run(engine.feed(stream), 100)

The contract of an engine runs on it, in `test_toy_backend.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from everstep.data import Block, nest
from everstep.engine.batch_dtypes import on_host
from everstep.engine.device_data import PlacedRows
from everstep.engine.engine import Engine
from everstep.engine.feed import Piece
from everstep.engine.logs import floats
from everstep.engine.probe import watch_sparse_labels
from everstep.engine.protocol import Backend, EngineOptions, Traced
from everstep.engine.steps import Steps
from everstep.task import ChainedScope
from everstep.task.grad import define_gradients
from everstep.types import Batch, Logs


class ToyBackend(Backend):
    """Runs steps on NumPy."""

    _steps: Steps

    def trace(
        self,
        steps: Steps,
        step: Callable[[Any], Mapping[str, Any]],
        batch: Batch,
    ) -> Traced:
        """Runs the step where assignments change no variable, and are forgotten."""
        with ChainedScope(), watch_sparse_labels(clip=True) as seen:
            outputs = step(_on_device(batch))
        classes = frozenset(labelled.classes for labelled in seen)
        shapes = {name: np.shape(value) for name, value in outputs.items()}
        return Traced(shapes, classes)

    def compile(self, steps: Steps, examples: Mapping[str, Batch]) -> None:
        """Keeps the steps: there is nothing to compile."""
        self._steps = steps

    def place(self, block: Block, single: bool = False) -> Any:
        """Returns the arrays in the dtypes of a device: the host is the device."""
        return _on_device(self.workers.own_block(block))

    def run(self, kind: str, piece: Piece) -> list[tuple[np.ndarray, ...]]:
        """Runs the steps of a piece one by one."""
        outputs: list[Any] = []
        with self._steps.guarded():
            for index in range(piece.count):
                outputs = self._steps.run(kind, _batch(piece.placed, index))
        if not self._steps.returns_outputs(kind):
            return []
        parts = [self.workers.parts(output) for output in outputs]
        return [tuple(np.array(part) for part in of_one) for of_one in parts]

    def read(self, kind: str) -> Callable[[], Logs]:
        """Reads the logs of the open window now."""
        logs = floats(self._steps.read(kind))
        return lambda: logs

    def get(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the values of some variables."""
        return {key: np.asarray(self._steps.variables[key].value) for key in keys}

    def set(self, keys: Sequence[str], values: Mapping[str, Any]) -> None:
        """Replaces the values of some variables."""
        for key in keys:
            self._steps.variables[key].assign(values[key])

    def wait(self) -> None:
        """Returns at once: NumPy has finished when it returns."""


def toy_engine(
    task: Any,
    model: keras.Model,
    optimizer: Any = None,
    **options: Any,
) -> Engine:
    """Creates an engine on NumPy, as `create_engine` does on the backends that ship."""
    return Engine(task, model, optimizer, ToyBackend(EngineOptions(**options)))


def _on_device(data: Any) -> Any:
    to_tensor = keras.ops.convert_to_tensor
    return nest.map_leaves(lambda leaf: to_tensor(on_host(leaf)), data)


def _batch(placed: Any, index: int) -> Batch:
    """Returns one batch of a piece; rows of data on the device are gathered now."""
    if isinstance(placed, PlacedRows):
        return nest.map_leaves(lambda leaf: leaf[placed.rows[index]], placed.arrays)
    return nest.map_leaves(lambda leaf: leaf[index], placed)


# -- gradients -----------------------------------------------------------------------

DIFFERENCE = 2.0**-6
"""How far a weight is moved each way; a quadratic loss has the same slope for each."""


def value_and_grad(
    loss_fn: Callable[[], Any], variables: list[keras.Variable], optimizer: Any
) -> tuple[Any, list[Any]]:
    """Returns the result of `loss_fn`, and its slope by each number of a variable."""

    def run(values: Mapping[int, Any]) -> tuple[Any, ChainedScope]:
        """Computes the loss where some variables have other values; assigns nothing."""
        other = [(variables[index], value) for index, value in values.items()]
        with ChainedScope(other) as scope:
            return loss_fn(), scope

    result, scope = run({})
    slopes = [np.zeros(variable.shape, "float32") for variable in variables]
    for index, variable in enumerate(variables):
        for place in np.ndindex(*variable.shape):
            moved = [np.array(variable.value), np.array(variable.value)]
            moved[0][place] += DIFFERENCE
            moved[1][place] -= DIFFERENCE
            losses = [run({index: value})[0] for value in moved]
            above, below = (_scaled_loss(loss, optimizer) for loss in losses)
            slopes[index][place] = (above - below) / (moved[0][place] - moved[1][place])
    for assigned in scope.assigned.values():
        assigned.assign(scope.get_current_value(assigned))
    return result, slopes


define_gradients("numpy", value_and_grad)


def _scaled_loss(result: Any, optimizer: Any) -> float:
    loss = result[0] if isinstance(result, tuple) else result
    scaled = loss if optimizer is None else optimizer.scale_loss(loss)
    return float(np.reshape(scaled, ()))
