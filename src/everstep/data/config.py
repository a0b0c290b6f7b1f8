"""The data section of a task's configuration."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from everstep.config import Config, Declined
from everstep.errors import Problem

_SERVICE = Declined(
    "a tf.data service gives batches to the first consumer, so a resumed run would not see the same ones", False, ""
)


@dataclasses.dataclass
class DataConfig(Config):
    """Where batches come from and how they are made.

    Fields that are None follow from the use: training data is shuffled, repeated and cut into full batches only;
    evaluation data is read once, in order, to the last sample.
    """

    _may_change: ClassVar[frozenset[str]] = frozenset(
        {"deterministic", "prefetch_buffer_size", "ram_budget", "autotune_algorithm"}
    )
    _interchangeable: ClassVar[Mapping[str, tuple[Any, ...]]] = {"cache": ("auto", "device", "host", False)}
    _declined: ClassVar[Mapping[str, Declined]] = {
        "enable_tf_data_service": _SERVICE,
        "tf_data_service_address": _SERVICE,
        "tf_data_service_job_name": _SERVICE,
        "enable_shared_tf_data_service_between_parallel_trainers": _SERVICE,
        "enable_round_robin_tf_data_service": _SERVICE,
        "apply_tf_data_service_before_batching": _SERVICE,
        "trainer_id": _SERVICE,
    }

    input_path: str | list[str] | dict[str, str | list[str]] = ""
    """Record files: a path, a glob, several with commas between, a list of those; or a dict of such, to be combined."""

    tfds_name: str | dict[str, str] = ""
    """A TensorFlow dataset that is prepared on this machine, such as `mnist` or `mnist:3.0.1`; or a dict of those."""

    tfds_split: str = ""
    """Which part of the TensorFlow dataset to read: `train`, `train[:80%]`."""

    tfds_data_dir: str = ""
    """Where TensorFlow Datasets keeps its data. Empty: `TFDS_DATA_DIR`, or `~/tensorflow_datasets`."""

    tfds_as_supervised: bool = False
    """Whether samples are pairs (input, target) instead of dicts."""

    tfds_skip_decoding_feature: str = ""
    """Features that are not decoded, with commas between, such as `image` for JPEG bytes."""

    global_batch_size: Annotated[int, Ge(1)] = 32
    """Samples per step, over all devices; at least 1."""

    limit_batches: Annotated[int, Ge(1)] | None = None
    """Read only this many batches of each epoch, for a quick test. None: all."""

    is_training: bool | None = None
    """Whether this is training data. None: the caller decides, from where the data is used."""

    drop_remainder: bool | None = None
    """Whether the last, short batch of an epoch is dropped. None: in training yes, in evaluation no."""

    shuffle_buffer_size: Annotated[int, Ge(0)] = 10_000
    """Size of the shuffle buffer, in records, when training on record files. Arrays are always shuffled as a whole."""

    cache: bool | Literal["auto", "device", "host"] = "auto"
    """Arrays live on the device, the host, or auto: a GPU where they fit. Records: true keeps parsed ones in memory."""

    cycle_length: Annotated[int, Ge(1)] | None = None
    """Files read in turn. None: 8 in training, one after the other in evaluation."""

    block_length: Annotated[int, Ge(1)] = 1
    """Records read from a file before the next file's turn."""

    sharding: bool = True
    """With an `input_context` of yours: whether each pipeline reads its own files, or if there are too few, records."""

    deterministic: bool | None = None
    """Samples always come in a deterministic order; False is refused."""

    seed: int | None = None
    """With the epoch, determines the order of training data. None: `runtime.seed`."""

    repeat: bool | None = None
    """Whether epoch follows epoch without end. None: in training yes, in evaluation no."""

    prefetch_buffer_size: int | None = None
    """Batches of record files to prefetch. None: TensorFlow decides."""

    ram_budget: Annotated[int, Ge(1)] | None = None
    """Gigabytes that preparing record files may use. None: TensorFlow decides."""

    autotune_algorithm: (
        Literal["DEFAULT", "HILL_CLIMB", "GRADIENT_DESCENT", "MAX_PARALLELISM", "STAGE_BASED"] | None
    ) = None
    """How TensorFlow tunes the number of threads. None: TensorFlow decides."""

    def _problems(self) -> Iterator[Problem]:
        if self.input_path and self.tfds_name:
            reason = f"but input_path is {self.input_path!r}"
            yield Problem("tfds_name", reason, received=self.tfds_name, remedy="set one of them")
        if self.tfds_name and not self.tfds_split:
            yield Problem("tfds_split", "is empty", remedy=f"name a split of {self.tfds_name!r}, such as 'train'")
        if self.deterministic is False:
            reason = "a run whose samples come in a random order cannot be resumed"
            yield Problem("deterministic", reason, received=False, remedy="remove it; a fixed order costs little")
