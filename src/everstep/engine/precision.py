"""The type in which a run computes."""

import contextlib
import logging
from collections.abc import Iterator

import keras

from everstep.engine.accelerator import has_accelerator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def precision(dtype: str | None) -> Iterator[None]:
    """Sets the global dtype policy while the model is built and used, and puts the old one back.

    One inside of another says nothing twice.
    """
    before = keras.config.dtype_policy()
    policy = f"mixed_{dtype}" if dtype in ("float16", "bfloat16") else dtype
    if dtype == "float16" and policy != before.name and not has_accelerator():
        logger.warning(
            "runtime.mixed_precision_dtype=float16 on a CPU: slower than float32, and without attention on JAX"
        )
    if policy is not None:
        keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
