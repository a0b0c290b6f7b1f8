"""`Steps`: the training and validation steps of a run, as stateful Keras code.

A backend compiles `run` and `read`, or calls them as they are. Who calls whom, from the backend to the user's step:

    run              one step: adds its logs to the window's sums
      Workers.run    on each device of this process
        train        composes the batch, checks the logs
          task.train_step    the user's

What a step needs is built by `building.py`, before the first one.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from everstep.data import RaggedArray, SparseArray, nest
from everstep.engine.explanations import explain
from everstep.engine.logs import checked_logs, checked_outputs, logs_in
from everstep.engine.probe import no_new_variables
from everstep.engine.window import WindowSums, size_of
from everstep.engine.workers import Workers
from everstep.task import Task, current_share, forget_scaled
from everstep.task.optim import batch_counts, held_optimizers, updates
from everstep.types import Batch


class Steps:
    """The steps of one engine.

    Args:
      task: The task whose steps are run.
      model: The model of the task.
      optimizer: The optimizer that is passed to `train_step`; None for evaluation only.
      workers: The devices and processes that share each step.
      assemble: Returns a sparse or ragged tensor from its parts; see `Backend.assemble`.

    Attributes:
      windows: The sums of the steps' logs, by kind of step: `train`, `validation`.
      variables: Every variable of the run by key.
      frozen: Keys of variables that no step changes.
      full_batch: The samples of a full batch.
      output_structure: The nesting of what the validation step returns; set whenever it is traced.
    """

    def __init__(
        self,
        task: Task,
        model: keras.Model,
        optimizer: keras.Optimizer | None,
        workers: Workers,
        assemble: Callable[[SparseArray | RaggedArray], Any],
    ) -> None:
        self.task, self.model, self.optimizer = task, model, optimizer
        self.windows: dict[str, WindowSums] = {}
        self.variables: dict[str, keras.Variable] = {}
        self.frozen: list[str] = []
        self.full_batch = 1
        self.output_structure: Any = {}
        self._workers, self._assemble = workers, assemble

    @property
    def optimizers(self) -> list[Any]:
        """The optimizer of the run, and those that the task and the model hold."""
        return held_optimizers(self.optimizer, self.task, self.model)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Explains errors of the steps inside the block, and refuses variables that they create.

        A backend enters it where it traces a step, or, if it runs steps eagerly, once for all steps of a call.
        """
        with explain(self.task), no_new_variables():
            yield

    def run(self, kind: str, batch: Batch) -> Any:
        """Runs one step of a kind and adds its logs to the window.

        Returns:
          The leaves of the outputs if `returns_outputs`: as a plain list, because backends order dicts in their own
          ways. Otherwise it has no meaning.
        """
        return self._workers.run(kind, self._train_part if kind == "train" else self._validate_part, batch)

    def returns_outputs(self, kind: str) -> bool:
        """Whether steps of a kind return their outputs, for the task to gather."""
        return kind == "validation" and self.task.aggregates

    def logs(self, kind: str, batch: Batch) -> dict[str, Any]:
        """Runs the user's step of a kind alone; returns its logs."""
        metrics = self.windows[kind].metrics
        return self.train(batch, metrics) if kind == "train" else logs_in(self.validate(batch, metrics))

    def read(self, kind: str) -> dict[str, Any]:
        """Returns the logs of a window as tensors."""
        logs, optimizer = self.windows[kind].read(), self.optimizer
        if kind == "train" and optimizer is not None:
            rate = getattr(optimizer, "learning_rate", None)  # an optimizer of several has none of its own
            logs.update(
                {} if rate is None else {"learning_rate": logs.get("learning_rate", rate)}, **updates(optimizer)
            )
        return {name: keras.ops.convert_to_tensor(value) for name, value in logs.items()}

    def inference(self, features: Any) -> Any:
        """Runs the user's inference step on features on the device; returns its outputs."""
        return self.task.inference_step(self.composed(features), self.model)

    def composed(self, batch: Batch) -> Batch:
        """Returns a batch on the device with sparse and ragged tensors assembled from their parts."""
        if isinstance(batch, SparseArray | RaggedArray):
            return self._assemble(batch)
        if isinstance(batch, dict):
            return {key: self.composed(part) for key, part in batch.items()}
        if isinstance(batch, list | tuple):
            parts = [self.composed(part) for part in batch]
            return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
        return batch

    def _train_part(self, part: Batch) -> None:
        window = self.windows["train"]
        own, whole = self._batch_weight(part)
        with batch_counts(whole):
            logs = self.train(part, window.metrics)
        window.add(logs, own)

    def _validate_part(self, part: Batch) -> list[Any]:
        window = self.windows["validation"]
        outputs = self.validate(part, window.metrics)
        window.add(logs_in(outputs), self._own_weight(part))
        if not self.task.aggregates:
            return []
        self.output_structure = nest.structure(outputs)
        return nest.flatten(outputs)

    def train(self, batch: Batch, metrics: Sequence[keras.Metric]) -> dict[str, Any]:
        """Runs the user's training step alone; returns its logs, checked."""
        forget_scaled()
        batch = self.composed(batch)
        return checked_logs(self.task.train_step(batch, self.model, self.optimizer, metrics), self.task)

    def validate(self, batch: Batch, metrics: Sequence[keras.Metric]) -> dict[str, Any]:
        """Runs the user's validation step alone; returns its outputs, checked, with their nesting."""
        batch = self.composed(batch)
        return checked_outputs(self.task.call_validation_step(batch, self.model, metrics), self.task)

    def _batch_weight(self, part: Batch) -> tuple[Any, Any]:
        """Returns how much the part of a batch of this device counts in the logs, and the whole batch in an update.

        The first is a number of samples, or what the task counts instead. The second is relative to a full batch, so
        that it is 1 for each batch of equally many samples.
        """
        share, own = current_share(), self._own_weight(part)
        if isinstance(own, int):
            return own, (own if share is None else share.samples) / self.full_batch
        return own, (own if share is None else share.weigh(own)) / float(self.full_batch)

    def _own_weight(self, part: Batch) -> Any:
        """Returns how much a part of a batch counts by itself: the number of its samples, or a tensor."""
        if type(self.task).batch_weight is Task.batch_weight:
            return size_of(part)
        weight = self.task.batch_weight(self.composed(part))
        return size_of(part) if weight is None else keras.ops.cast(weight, "float32")
