"""What a step costs: floating-point operations, from the program that was compiled; None where they cannot be known.

Nothing is compiled to count them. The compiler's own cost analysis looks at the program of the training step, which is
there already; on TensorFlow, where the compiler cannot take it, the graph of the step is read; on PyTorch a step is run
once more, and undone.
"""

import importlib
import logging
from typing import Any, Protocol

import keras

from everstep.types import Batch

logger = logging.getLogger(__name__)

_COUNTERS = {
    "tensorflow": "everstep.engine.flops_tensorflow",
    "jax": "everstep.engine.flops_jax",
    "torch": "everstep.engine.flops_torch",
}


class _Counter(Protocol):
    def train_step(self, engine: Any, batch: Batch | None) -> float | None: ...

    def inference_step(self, engine: Any, batch: Batch) -> float | None: ...

    def device_kind(self) -> str: ...


def of_train_step(engine: Any, batch: Batch | None) -> float | None:
    """Returns the operations of one training step; None if they cannot be known.

    Args:
      engine: An engine that has trained.
      batch: A batch as it was trained on; None where there is none at hand.
    """
    return _or_none("the training step", lambda: _counter().train_step(engine, batch))


def of_inference_step(engine: Any, batch: Batch) -> float | None:
    """Returns the operations of `task.inference_step` on a batch, which is traced; None if they cannot be known."""
    return _or_none("the inference step", lambda: _counter().inference_step(engine, batch))


def device_kind() -> str:
    """Returns what the device that computes calls itself, such as `NVIDIA H100 80GB HBM3`; empty if it is unknown."""
    return _or_none("the device", lambda: _counter().device_kind()) or ""


def _counter() -> _Counter:
    return importlib.import_module(_COUNTERS[keras.backend.backend()])


def _or_none(what: str, ask: Any) -> Any:
    try:
        return ask()
    except Exception as error:  # a figure to read at the end is no reason to fail
        logger.debug("%s: cost unknown: %s: %s", what, type(error).__name__, error)
        return None
