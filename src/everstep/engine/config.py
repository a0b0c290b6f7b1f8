"""How and where a run computes."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from everstep.config import Config, ConfigError, Problem
from everstep.config.declined import Declined
from everstep.engine.declined import DECLINED
from everstep.engine.strategy import strategy_name
from everstep.errors import UsageError


@dataclasses.dataclass
class RuntimeConfig(Config):
    """Backend, seed and precision; and what makes a run end early."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"stop_signals", "requeue_exit_code", "preemption_notice"})
    _declined: ClassVar[Mapping[str, Declined]] = DECLINED

    backend: str | None = None
    """The Keras backend: tensorflow, jax or torch. None: TensorFlow if installed, else JAX. Set before Keras loads."""
    seed: int = 0
    """Seeds Python, NumPy and Keras before any object of the user's is built, and the order of the data."""
    mixed_precision_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Compute in this type, keep variables in float32. float16 brings loss scaling."""
    loss_scale: float | Literal["dynamic"] | None = None
    """For float16: a fixed scale, or dynamic, which is also what None means."""
    distribution_strategy: str = "one_device"
    """off or one_device; or several devices of this machine that share each batch (mirrored); or its TPU (tpu)."""
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
        """Checks the numbers, and that nothing is set that nobody reads.

        Raises:
          UsageError: One of them cannot be used, or would not be; names the key.
        """
        super().validate()
        problems = [*self._wrong_numbers(), *self._wrong_devices()]
        if problems:
            raise ConfigError(problems)

    def _wrong_numbers(self) -> Iterator[Problem]:
        if not 0 <= self.seed < 2**32:
            yield Problem("seed", f"received {self.seed}, must be from 0 to {2**32 - 1}")
        if self.requeue_exit_code is not None and not 3 <= self.requeue_exit_code <= 255:
            text = f"received {self.requeue_exit_code}, must be from 3 to 255: 0, 1 and 2 mean done, failed, bad input"
            yield Problem("requeue_exit_code", text)
        if isinstance(self.loss_scale, float | int):
            yield from self._wrong_scale(self.loss_scale)

    def _wrong_scale(self, scale: float) -> Iterator[Problem]:
        if not 0 < scale < math.inf:
            yield Problem("loss_scale", f"received {scale}, must be more than 0, or dynamic")
        elif self.mixed_precision_dtype != "float16":
            text = "but losses are scaled with mixed_precision_dtype=float16 alone: set that, or leave this out"
            yield Problem("loss_scale", f"received {scale}, {text}")

    def _wrong_devices(self) -> Iterator[Problem]:
        try:
            name = strategy_name(self.distribution_strategy)
        except UsageError as error:
            yield Problem("distribution_strategy", str(error))
            return
        if self.num_gpus < 0:
            yield Problem("num_gpus", f"received {self.num_gpus}, must be at least 0 (0: all there are)")
        unread = {
            "num_gpus": (self.num_gpus > 1, "mirrored"),
            "all_reduce_alg": (self.all_reduce_alg is not None, "mirrored"),
            "tpu": (bool(self.tpu), "tpu"),
        }
        for key, (is_set, reader) in unread.items():
            if is_set and name != reader:
                text = f"received {getattr(self, key)!r}, but distribution_strategy is {name}: set it to {reader}"
                yield Problem(key, f"{text}, or leave this out")
