"""What a run in stages has beside the trainer's section of any other."""

import dataclasses
from typing import ClassVar

from everstep.loop.config import TrainerConfig


@dataclasses.dataclass
class ProgressiveTrainerConfig(TrainerConfig):
    """How long to train in all, and which copies of the model to keep aside on the way."""

    _may_change: ClassVar[frozenset[str]] = TrainerConfig._may_change | {
        "export_checkpoint",
        "export_checkpoint_interval",
        "export_max_to_keep",
        "export_only_final_stage_ckpt",
    }

    export_checkpoint: bool = True
    """Whether to write copies of the model alone into `exported_ckpts`, for runs that know nothing of stages."""
    export_checkpoint_interval: int | None = None
    """Steps between them; None: `checkpoint_interval`. The model at the end of training is always among them."""
    export_max_to_keep: int | None = None
    """How many newest ones stay; None: `max_to_keep`."""
    export_only_final_stage_ckpt: bool = True
    """Whether only models of the last stage are copied."""
