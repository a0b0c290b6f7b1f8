"""The type in which a run computes."""

import contextlib
from collections.abc import Iterator

import keras


@contextlib.contextmanager
def precision(dtype: str | None) -> Iterator[None]:
    """Sets the global dtype policy while the model is built and used, and puts the old one back."""
    before = keras.config.dtype_policy()
    if dtype in ("float16", "bfloat16"):
        keras.config.set_dtype_policy(f"mixed_{dtype}")
    elif dtype == "float32":
        keras.config.set_dtype_policy("float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
