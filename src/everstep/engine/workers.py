"""`Workers`: who computes each step of an engine together; here one device alone.

Several devices or processes are subclasses: `DeviceMesh` (JAX), `Replicas` (`tf.distribute`) and `SharedSteps`
(processes on TensorFlow and PyTorch). A backend selects one when it is created. The runner calls the same methods of
each, and does not ask which it is.
"""

from collections.abc import Callable, Mapping
from typing import Any

from everstep.data import Block, OwnRows
from everstep.types import Batch


class Workers:
    """One device, which computes each step by itself.

    Attributes:
      count: The number of workers that share each batch.
      processes: The number of processes that they are in, where each runs its own program.
      sees_whole_loss: Whether the loss that a step returns is of the whole batch, not of the part of one worker.
      lengths: How many samples the arrays of a whole batch of the current call have; empty where a step sees them.
    """

    count = 1
    processes = 1
    sees_whole_loss = True
    lengths: tuple[int, ...] = ()

    @property
    def own_rows(self) -> OwnRows | None:
        """Which rows of a batch this process needs; None if all."""
        return None

    def check_batch(self, size: int) -> None:
        """Refuses training batches of a size that cannot be shared, where that is required.

        Raises:
          UsageError: The batches cannot be shared.
        """

    def why_not_on_device(self) -> str:
        """Returns why no data can live on the device; empty if it can."""
        return ""

    def own_batch(self, batch: Batch) -> Batch:
        """Returns the rows of this process of a batch on the host."""
        return batch

    def own_block(self, block: Block) -> Any:
        """Returns the rows of this process of all batches of a block."""
        return block.data

    def prepare(self, steps: Any, examples: Mapping[str, Batch], trace: Callable[..., Any]) -> None:
        """Prepares steps that are built; called once, on all processes.

        Args:
          steps: The `Steps`.
          examples: A batch for each kind of step.
          trace: Traces a function of a batch on such a batch.
        """

    def begin_call(self, block: Block) -> None:
        """Notes which batches the steps of the next call have; called before each call."""

    def trace(self, step: Callable[[Batch], Mapping[str, Any]], batch: Batch) -> Mapping[str, Any]:
        """Runs a step that is being traced, before the steps are prepared; returns the outputs of one worker."""
        return step(batch)

    def run(self, kind: str, step: Callable[[Batch], Any], batch: Batch) -> Any:
        """Runs a step of a kind on the workers of this process.

        Args:
          kind: What the step is for: `train` or `validation`.
          step: The step.
          batch: The batch on the device.

        Returns:
          What the step returned; of several workers, `parts` takes each value apart.
        """
        return step(batch)

    def parts(self, value: Any) -> tuple[Any, ...]:
        """Returns the value of each worker that had samples, of a value in what `run` returned."""
        return (value,)
