"""What a run in stages has beside the trainer's section of any other."""

import dataclasses
from typing import ClassVar

from everstep.config import ConfigError, Problem
from everstep.loop.config import TrainerConfig

_LEAST = {"export_checkpoint_interval": 0, "export_max_to_keep": 1}


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
    """Steps between them, each written at the first loop's end at or after a multiple; 0: none on the way. None:
    `checkpoint_interval`. The model at the end of training is always among them."""
    export_max_to_keep: int | None = None
    """How many newest ones stay, at least 1; None: `max_to_keep`."""
    export_only_final_stage_ckpt: bool = True
    """Whether only models of the last stage are copied."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        received = {name: getattr(self, name) for name in _LEAST}
        low = [name for name, value in received.items() if value is not None and value < _LEAST[name]]
        if low:
            texts = {name: f"received {received[name]}, must be at least {_LEAST[name]}" for name in low}
            raise ConfigError([Problem(name, text) for name, text in texts.items()])
