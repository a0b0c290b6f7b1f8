"""The type in which a run computes."""

import contextlib
import logging
from collections.abc import Iterator

import keras

from everstep.engine.devices import has_accelerator
from everstep.errors import UsageError, nearest

logger = logging.getLogger(__name__)

_POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}


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


def set_mixed_precision_policy(dtype: str) -> None:
    """Makes layers that are built from now on compute in a type, and keep their variables in float32.

    `run_experiment` does so by itself while it runs, where `runtime.mixed_precision_dtype` is set; this is for
    models that are built before.

    Args:
      dtype: `float32`, `float16` or `bfloat16`.

    Raises:
      UsageError: It is none of them.
    """
    if dtype not in _POLICIES:
        raise UsageError(key="runtime.mixed_precision_dtype", received=dtype, remedy=nearest(str(dtype), _POLICIES))
    keras.config.set_dtype_policy(_POLICIES[dtype])
