"""The type in which a run computes."""

import contextlib
import logging
from collections.abc import Iterator

import keras

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def precision(dtype: str | None) -> Iterator[None]:
    """Sets the global dtype policy while the model is built and used, and puts the old one back."""
    before = keras.config.dtype_policy()
    if dtype == "float16" and not _has_accelerator():
        logger.warning("runtime.mixed_precision_dtype=float16 on a CPU: it works, but slower than float32")
    if dtype in ("float16", "bfloat16"):
        keras.config.set_dtype_policy(f"mixed_{dtype}")
    elif dtype == "float32":
        keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _has_accelerator() -> bool:
    return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
