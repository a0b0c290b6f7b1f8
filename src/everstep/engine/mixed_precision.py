"""Mixed precision: the dtype in which a run computes."""

import contextlib
import logging
from collections.abc import Iterator

import keras

from everstep.engine.device_names import has_accelerator
from everstep.errors import UsageError, nearest

logger = logging.getLogger(__name__)

_POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}


@contextlib.contextmanager
def precision(dtype: str | None) -> Iterator[None]:
    """Sets the global dtype policy while the model is built and used, and restores the previous one.

    Nested blocks warn only once.
    """
    before = keras.config.dtype_policy()
    policy = None if dtype is None else _POLICIES.get(dtype, dtype)
    if dtype == "float16" and policy != before.name and not has_accelerator():
        logger.warning(
            "runtime.mixed_precision_dtype=float16 on a CPU is slower than float32, and attention does not run on JAX"
        )
    if policy is not None:
        keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def set_mixed_precision_policy(dtype: str) -> None:
    """Makes layers that are built after this call compute in a dtype, with variables in float32.

    `run_experiment` does this by itself if `runtime.mixed_precision_dtype` is set; this function is for models that are
    built before it is called.

    Args:
      dtype: `float32`, `float16` or `bfloat16`.

    Raises:
      UsageError: The dtype is another one.
    """
    if dtype not in _POLICIES:
        raise UsageError(key="runtime.mixed_precision_dtype", received=dtype, remedy=nearest(str(dtype), _POLICIES))
    keras.config.set_dtype_policy(_POLICIES[dtype])
