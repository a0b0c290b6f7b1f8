"""How and where a run computes."""

import dataclasses
from typing import ClassVar, Literal

from everstep.config import Config, ConfigError, Problem


@dataclasses.dataclass
class RuntimeConfig(Config):
    """Backend, seed and precision; and what makes a run end early."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"stop_signals", "requeue_exit_code", "preemption_notice"})

    backend: str | None = None
    """The Keras backend: tensorflow or jax. None: TensorFlow if it is installed, else JAX. Set before Keras loads."""
    seed: int = 0
    """Seeds Python, NumPy and Keras before any object of the user's is built, and the order of the data."""
    mixed_precision_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Compute in this type, keep variables in float32. float16 brings loss scaling."""
    loss_scale: float | Literal["dynamic"] | None = None
    """For float16: a fixed scale, or dynamic, which is also what None means."""
    distribution_strategy: Literal["off", "one_device", "mirrored", "tpu"] = "one_device"
    """One device; or several of this machine that share each batch (mirrored); or its TPU."""
    num_gpus: int = 0
    """For mirrored: how many devices; 0 for all there are."""
    all_reduce_alg: Literal["nccl", "hierarchical_copy"] | None = None
    """For mirrored on TensorFlow: how gradients are summed. None: it chooses."""
    tpu: str | None = None
    """For tpu on TensorFlow: its name or address; None for this machine's."""
    enable_xla: bool = False
    """Compile with XLA on a GPU (TensorFlow; JAX always does)."""
    stop_signals: list[Literal["USR1", "USR2", "HUP", "QUIT", "ALRM", "XCPU", "PWR", "TERM"]] = []
    """Signals that, like SIGTERM and SIGINT, save the state and end the run: what Slurm sends before time is up."""
    requeue_exit_code: int | None = None
    """What the run exits with after one of `stop_signals` or a preemption notice, so that it is started again."""
    preemption_notice: Literal["gce", "aws"] | None = None
    """Whose announcement that the machine will go away to watch for, and save in time."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: NumPy could not take the seed, or the exit code means something else.
        """
        super().validate()
        if not 0 <= self.seed < 2**32:
            raise ConfigError([Problem("seed", f"received {self.seed}, must be from 0 to {2**32 - 1}")])
        if self.requeue_exit_code is not None and not 3 <= self.requeue_exit_code <= 255:
            text = f"received {self.requeue_exit_code}, must be from 3 to 255: 0, 1 and 2 mean done, failed, bad input"
            raise ConfigError([Problem("requeue_exit_code", text)])
