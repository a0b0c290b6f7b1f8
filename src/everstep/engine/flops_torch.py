"""Operations of a step on PyTorch: it is run once more under PyTorch's own counter, and undone.

The counter knows products and convolutions, which is where the operations are; what is added up beside them is not
counted.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from everstep.engine.torch_undo import undone
from everstep.task.task import unpack
from everstep.types import Batch


def train_step(engine: Any, batch: Batch | None) -> float | None:
    """Returns the operations of a training step."""
    if batch is None:
        return None
    window = engine.windows["train"]
    return _counted(lambda: engine._user_step(engine.place(batch), window.metrics))


def inference_step(engine: Any, batch: Batch) -> float | None:
    """Returns the operations of the inference step."""
    return _counted(lambda: engine.task.inference_step(engine.composed(engine.place(unpack(batch)[0])), engine.model))


def device_kind() -> str:
    """Returns the kind of device that computes."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _counted(step: Callable[[], Any]) -> float | None:
    with undone(), FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops()) or None
