"""What the command line asks of a suite."""

import dataclasses
import importlib.util
import math
from pathlib import Path

BACKENDS = ("jax", "tensorflow", "torch")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asks of a suite.

    Attributes:
      rounds: How often each contender runs.
      steps: Steps of a round that count; None for the suite's own number.
      backends: The backends to run on, of those that are installed.
      device: Whether to use the accelerator.
      large: Whether to run the largest sizes as well.
      workers: Threads or processes that read data; None for the number that is recommended here.
      models: Models by name, for a suite that has some; all if empty.
      contenders: Contenders of the zoo, as `zoo_process` calls them; all if empty.
      json: The file of the results, for a suite that keeps more beside it.
      resume: Whether such a suite goes on with what it has kept.
      minutes: After how many such a suite starts nothing more.
    """

    rounds: int = 5
    steps: int | None = None
    backends: tuple[str, ...] = BACKENDS
    device: bool = False
    large: bool = False
    workers: int | None = None
    models: tuple[str, ...] = ()
    contenders: tuple[str, ...] = ()
    json: Path | None = None
    resume: bool = False
    minutes: float = math.inf

    @property
    def installed_backends(self) -> list[str]:
        """The backends that can be run here."""
        return [name for name in self.backends if importlib.util.find_spec(name) is not None]


def fit_settings(backend: str, per_execution: int = 100) -> dict[str, int]:
    """Returns the settings of `fit` to compare with: single steps, and many per execution, which PyTorch has not."""
    many = {} if backend == "torch" else {f"fit, {per_execution} per execution": per_execution}
    return {"fit": 1, **many}
