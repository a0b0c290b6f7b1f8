"""The data section of a task's configuration."""

import dataclasses
from typing import ClassVar

from everstep.config import Config
from everstep.config.problem import ConfigError, Problem


@dataclasses.dataclass
class DataConfig(Config):
    """Where batches come from and how they are cut.

    Fields left at None follow from the use: training data is shuffled, repeated and cut into full batches
    only; evaluation data is read once, in order, to the last sample.
    """

    _may_change: ClassVar[frozenset[str]] = frozenset({"prefetch_buffer_size"})

    input_path: str = ""
    """Record files: a path, a glob, or several separated by commas. Empty for tasks that bring data."""

    global_batch_size: int = 32
    """Samples per step, over all devices; at least 1."""

    is_training: bool | None = None
    """Whether this is training data. None: the caller decides, from where the data is used."""

    drop_remainder: bool | None = None
    """Whether the last, short batch of an epoch is left out. None: in training yes, in evaluation no."""

    shuffle_buffer_size: int = 10_000
    """Records to draw from at random when training on record files. Arrays are always shuffled as a whole."""

    seed: int | None = None
    """With the epoch, decides the order of training data. None: `runtime.seed`."""

    repeat: bool | None = None
    """Whether epoch follows epoch without end. None: in training yes, in evaluation no."""

    prefetch_buffer_size: int | None = None
    """Batches of record files prepared ahead. None: TensorFlow decides."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them is too small; names the key.
        """
        super().validate()
        least = {"global_batch_size": 1, "shuffle_buffer_size": 0}
        low = {name: bound for name, bound in least.items() if getattr(self, name) < bound}
        if low:
            raise ConfigError([Problem(n, f"received {getattr(self, n)}, must be at least {low[n]}") for n in low])
