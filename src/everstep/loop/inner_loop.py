"""`InnerLoop`: what a `Controller` asks of the object that runs the steps."""

import abc
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from everstep.engine import non_finite
from everstep.loop.frozen import FrozenWeights
from everstep.loop.recovery import BadBatchSkipper
from everstep.private_names import refuse_private_names
from everstep.types import Logs, OwnState, StoredState


class InnerLoop(abc.ABC):
    """Trains and evaluates a number of steps; the `Controller` decides when. `Trainer` is the one for tasks.

    Four methods have to be written. The others return what is true without an engine: nothing is prefetched, no
    variable is frozen, and the variables that `state` returns are the only ones.

    Attributes:
      global_step: Steps done so far.
      frozen: The variables that checkpoints leave out; None where they have all of them.
    """

    global_step: int
    frozen: FrozenWeights | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_private_names(cls)

    @abc.abstractmethod
    def train(
        self,
        num_steps: int,
        *,
        new_window: bool = True,
        after_call: Callable[[int], bool] = lambda step: True,
        may_wait: Callable[[], bool] = lambda: True,
        skipper: BadBatchSkipper | None = None,
    ) -> Mapping[str, Any]:
        """Trains `num_steps` steps, fewer where a stop is requested; returns the window's logs.

        Args:
          num_steps: The number of steps.
          new_window: Whether a window begins; False continues the one that the previous call left open.
          after_call: Called after each compiled call with the total number of steps done; False stops training here.
          may_wait: Polled while the next batch is not available; False stops training here.
          skipper: Trains single steps up to its `until`, checks each, and skips bad batches.
        """

    @abc.abstractmethod
    def evaluate(
        self,
        num_steps: int = -1,
        *,
        before_call: Callable[[int], None] | None = None,
        after_call: Callable[[int], bool] | None = None,
        may_wait: Callable[[], bool] = lambda: True,
        single_batches: bool = False,
    ) -> Logs:
        """Evaluates `num_steps` batches, -1 for all; returns the logs.

        Args:
          num_steps: The number of batches.
          before_call: Called before each compiled call with the number of batches done.
          after_call: Called after each call; False ends the evaluation here.
          may_wait: Polled while the next batch is not available.
          single_batches: Whether each batch is a call of its own.
        """

    @abc.abstractmethod
    def state(self, into: OwnState | None = None) -> tuple[OwnState, dict[str, Any]]:
        """Returns what must resume together: variables by key, and the step with other plain values.

        Args:
          into: Arrays of an earlier call that are no longer needed; their memory may be reused.
        """

    @abc.abstractmethod
    def restore(self, state: StoredState, meta: dict[str, Any]) -> None:
        """Restores what `state` returned."""

    def prepare_copies(self, without: Collection[str] = ()) -> None:  # noqa: B027
        """Is called before training if `state` will be; may prepare its first call in the background."""

    def non_finite(self, state: OwnState | None = None) -> list[str]:
        """Returns the keys of the variables that hold NaN or an infinity.

        Args:
          state: What `state` has just returned, where the caller has it: then nothing is read again.
        """
        return non_finite(self.state()[0] if state is None else state)

    def window_logs(self) -> Mapping[str, Any]:
        """Returns the logs of the open window as it is now."""
        return {}

    @property
    def watched_log(self) -> str:
        """The name of the training log that has to stay finite."""
        return "training_loss"

    def bad_step(self, step: int) -> int | None:
        """Returns the first step of the window up to `step` that was not finite; None where that is unknown."""
        return None

    def push(self) -> None:  # noqa: B027
        """Copies the state to the Keras objects, where either has changed; does not wait for the device."""

    def pull(self) -> None:  # noqa: B027
        """Copies back what has changed in the Keras objects."""

    def prefetch_paused(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block nothing is prefetched: only user code draws from the global random generators."""
        return contextlib.nullcontext()
