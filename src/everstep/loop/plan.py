"""`Plan`: what one call of the controller is to do."""

import dataclasses
from collections.abc import Callable

from everstep.loop.windows import Windows


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be trained, and what belongs to the end of a window.

    Attributes:
      target: Train until so many steps are done in all.
      windows: Where windows end.
      evaluation_due: Whether to evaluate at the step that is reached.
      eval_steps: Batches of an evaluation.
      save_at_end: Whether to save when training is done.
    """

    target: int
    windows: Windows
    evaluation_due: Callable[[], bool] = lambda: False
    eval_steps: int = -1
    save_at_end: bool = True
