"""The precision of a whole process, for programs that set it themselves."""

import keras

from everstep.errors import UsageError, nearest

_POLICIES = {"float32": "float32", "float16": "mixed_float16", "bfloat16": "mixed_bfloat16"}


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
        raise UsageError(f"runtime.mixed_precision_dtype: received {dtype!r}; {nearest(str(dtype), _POLICIES)}")
    keras.config.set_dtype_policy(_POLICIES[dtype])
