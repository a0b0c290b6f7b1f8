"""How and where a run computes."""

import dataclasses
from typing import Literal

from everstep.config import Config, ConfigError, Problem


@dataclasses.dataclass
class RuntimeConfig(Config):
    """Backend, seed and precision."""

    backend: str | None = None
    """The Keras backend: tensorflow or jax. None: TensorFlow if it is installed, else JAX. Set before Keras loads."""
    seed: int = 0
    """Seeds Python, NumPy and Keras before any object of the user's is built, and the order of the data."""
    mixed_precision_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Compute in this type, keep variables in float32. float16 brings loss scaling."""
    loss_scale: float | Literal["dynamic"] | None = None
    """For float16: a fixed scale, or dynamic, which is also what None means."""
    enable_xla: bool = False
    """Compile with XLA on a GPU (TensorFlow; JAX always does)."""

    def validate(self) -> None:
        """Checks the seed.

        Raises:
          UsageError: NumPy could not take it.
        """
        super().validate()
        if not 0 <= self.seed < 2**32:
            raise ConfigError([Problem("seed", f"received {self.seed}, must be from 0 to {2**32 - 1}")])
