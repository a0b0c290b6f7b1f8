"""`RuntimeConfig`: backend, devices, seed and precision of a run."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Le

from everstep.config import Config, Declined
from everstep.engine.sharding import wrong_mesh, wrong_sharding
from everstep.engine.strategy import strategy_name
from everstep.errors import Problem, UsageError

_UNUSED = "it has no effect, in Model Garden neither"
_THREADS = f"the backend manages its threads, and {_UNUSED}"
_MACHINES = "the processes of a run find each other by their environment (see `everstep launch --processes`)"
_CORES = "each replica is one core, and the batch is split between them"

_DECLINED = {
    "gpu_thread_mode": Declined(_THREADS),
    "dataset_num_private_threads": Declined(_THREADS),
    "per_gpu_thread_count": Declined(_THREADS, 0),
    "worker_hosts": Declined(_MACHINES),
    "task_index": Declined(_MACHINES, -1),
    "num_packs": Declined("the backend decides how gradients are packed for the sum", 1),
    "run_eagerly": Declined("steps are compiled, on PyTorch recorded as CUDA graphs (see cuda_graph) or eager", False),
    "batchnorm_spatial_persistent": Declined(_UNUSED, False),
    "tpu_enable_xla_dynamic_padder": Declined("batches of another shape are compiled separately, unpadded", False),
    "num_cores_per_replica": Declined(_CORES, 1),
    "default_shard_dim": Declined(_CORES, -1),
    "use_tpu_mp_strategy": Declined(_CORES, False),
}
"""Keys of Model Garden's runtime section that are not supported: the reason, and the value that is accepted."""


@dataclasses.dataclass
class RuntimeConfig(Config):
    """Backend, devices, seed and precision, and the signals that end a run early."""

    _may_change: ClassVar[frozenset[str]] = frozenset(
        {"cuda_graph", "stop_signals", "requeue_exit_code", "preemption_notice"}
    )
    _interchangeable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"deterministic": (True, "auto")}
    _declined: ClassVar[Mapping[str, Declined]] = _DECLINED

    backend: str | None = None
    """The Keras backend: tensorflow, jax or torch. None: TensorFlow if installed, else JAX. Set before Keras loads."""
    seed: Annotated[int, Ge(0), Le(2**32 - 1)] = 0
    """Seeds Python, NumPy and Keras before any object of the user is built, and the order of the data."""
    mixed_precision_dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Compute in this type, keep variables in float32. float16 brings loss scaling."""
    loss_scale: float | Literal["dynamic"] | None = None
    """For float16: a fixed scale, or dynamic; None means dynamic."""
    distribution_strategy: str = "one_device"
    """off or one_device; mirrored: several devices of this machine share each batch; tpu: its TPU."""
    num_gpus: int = 0
    """For mirrored: the number of devices; 0 for all."""
    mesh: dict[str, int] | None = None
    """Devices along named axes (JAX): {data: 2, model: 4}. `data` shares each batch. None: all devices along data."""
    sharding: str | dict[str, list[str | None]] = "replicated"
    """replicated; fsdp: divide variables over data (JAX); or axes by expressions for keys: {kernel: [null, model]}."""
    all_reduce_alg: Literal["nccl", "hierarchical_copy"] | None = None
    """For mirrored on TensorFlow: how gradients are summed. None: TensorFlow chooses."""
    tpu: str | None = None
    """For tpu on TensorFlow: the name or address of the TPU; None for the TPU of this machine."""
    enable_xla: bool = False
    """Compile with XLA on a GPU (TensorFlow; JAX always does)."""
    cuda_graph: bool = True
    """On PyTorch and a GPU: record each step once as a CUDA graph and replay it. The bits are those of eager steps."""
    deterministic: bool | Literal["auto"] = "auto"
    """On a GPU, repeat steps bit for bit: auto wherever that can be had, with a warning where not; true; or false."""
    remat: str | list[str] | None = None
    """Compute activations again in the backward pass to save memory: full, or expressions for names of layers."""
    float8: bool = False
    """Compute the products of dense layers in float8 (JAX; pays on GPUs that have it, such as the H100 and H200)."""
    xla_preset: Literal["none", "latency", "cublas", "cudnn", "transformer", "triton"] = "none"
    """A named set of XLA options for a GPU (JAX)."""
    stop_signals: list[Literal["USR1", "USR2", "HUP", "QUIT", "ALRM", "XCPU", "PWR", "TERM"]] = []
    """Signals that save the state and end the run, as SIGTERM and SIGINT do; Slurm sends one before its time limit."""
    requeue_exit_code: int | None = None
    """The exit code after one of `stop_signals` or a preemption notice, so that the scheduler starts the run again."""
    preemption_notice: Literal["gce", "aws"] | None = None
    """The cloud whose preemption notices are watched for, to save before the machine is taken away."""

    def _problems(self) -> Iterator[Problem]:
        yield from [*self._wrong_numbers(), *self._wrong_devices(), *self._wrong_model_settings()]

    def _wrong_numbers(self) -> Iterator[Problem]:
        if self.requeue_exit_code is not None and not 4 <= self.requeue_exit_code <= 255:
            text = "must be from 4 to 255: 0, 1, 2 and 3 mean done, failed, bad input, stopped by itself"
            yield Problem("requeue_exit_code", text, received=self.requeue_exit_code)
        scale = self.loss_scale
        if isinstance(scale, float | int) and not 0 < scale < math.inf:
            yield Problem("loss_scale", "must be more than 0, or dynamic", received=scale)
        elif isinstance(scale, float | int) and self.mixed_precision_dtype != "float16":
            text = "but losses are scaled only with mixed_precision_dtype=float16"
            yield Problem("loss_scale", text, received=scale, remedy="set mixed_precision_dtype, or remove loss_scale")

    def _wrong_model_settings(self) -> Iterator[Problem]:
        for pattern in self.remat if isinstance(self.remat, list) else [self.remat or ""]:
            try:
                re.compile(pattern)
            except re.error as error:
                yield Problem("remat", f"is not a regular expression: {error}", received=pattern)
        if self.float8 and self.mixed_precision_dtype == "float16":
            text = "but losses are scaled in float16, and the scales of float8 with them"
            yield Problem("float8", text, received=True, remedy="set mixed_precision_dtype to bfloat16")

    def _wrong_devices(self) -> Iterator[Problem]:
        try:
            name = strategy_name(self.distribution_strategy)
        except UsageError as error:
            yield from error.problems
            return
        if self.num_gpus < 0:
            yield Problem("num_gpus", "must be at least 0 (0: all devices)", received=self.num_gpus)
        unread = {
            "num_gpus": (self.num_gpus > 1, "mirrored"),
            "all_reduce_alg": (self.all_reduce_alg is not None, "mirrored"),
            "tpu": (bool(self.tpu), "tpu"),
        }
        for key, (is_set, reader) in unread.items():
            if is_set and name != reader:
                remedy = f"set distribution_strategy to {reader}, or remove {key}"
                text = f"but distribution_strategy is {name}"
                yield Problem(key, text, received=getattr(self, key), remedy=remedy)
        yield from wrong_mesh(self.mesh)
        yield from wrong_sharding(self.sharding, self.mesh)
