"""The loop of a flow: its epochs go to MLflow as they end."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from everstep.flow.context import FlowContext
from everstep.flow.drawing import NotebookPlot, draw
from everstep.loop.epochs import EpochController
from everstep.loop.learning_rate import LearningRate
from everstep.run.record import read
from everstep.types import Logs


class FlowWatcher(keras.callbacks.Callback):
    """A callback, because callbacks see an epoch under Keras's names: loss, val_loss.

    Args:
      context: Where the numbers go.
      model_name: What the model is called, where no parameter says so.
    """

    def __init__(self, context: FlowContext, model_name: str) -> None:
        super().__init__()
        self._context, self.model_name = context, model_name
        self._plot = NotebookPlot()
        self._curves: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Tracks the numbers of an epoch, and shows the curves in a notebook."""
        numbers = {name: float(value) for name, value in (logs or {}).items()}
        if self._context.tracking is not None:
            self._context.tracking.log(epoch, numbers)
        for name, value in numbers.items():
            self._curves.setdefault(name, []).append(value)
        if self._plot.is_seen:
            self._plot.show(draw(self._curves, self._context.settings.task))

    def get_state(self) -> dict[str, Any]:
        """Returns what a run that goes on has to know."""
        return {"curves": {name: list(values) for name, values in self._curves.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        self._curves = {name: [float(value) for value in values] for name, values in state["curves"].items()}


class FlowController(EpochController):
    """An epoch controller that tracks the attempt, from its first step to an exception or to its end.

    Args:
      context: The flow.
      rate: The learning rate as the model was compiled, where that is a constant.
      **kwargs: As for `EpochController`.
    """

    def __init__(self, *, context: FlowContext, rate: float | None, **kwargs: Any) -> None:
        super().__init__(keep=True, epochs_key="epoch", **kwargs)
        self.saver.parts.append(LearningRate(self.trainer, rate))
        self._context = context

    def train(self, steps: int | None, checkpoint_at_completion: bool = True) -> Logs:
        """Trains until `steps` steps are done in all; returns the last window's logs."""
        with self._recorded():
            return super().train(steps, checkpoint_at_completion)

    def train_and_evaluate(
        self, train_steps: int | None, eval_steps: int = -1, eval_interval: int | None = None
    ) -> Logs:
        """Trains until `train_steps`, evaluating at each epoch's end; returns the logs of the last evaluation."""
        with self._recorded():
            return super().train_and_evaluate(train_steps, eval_steps, eval_interval)

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Inside the block the attempt is tracked; where it fails, it is closed before the directory may go."""
        context = self._context
        context.begin(read(context.directory)["id"], self.callbacks.model.name)
        try:
            yield
        except BaseException:
            context.close()
            raise
