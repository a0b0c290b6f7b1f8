"""KerasHub, imported where it is used.

Where TensorFlow is installed, KerasHub imports it, which takes seconds and is needed only on TensorFlow: on JAX and
PyTorch it is hidden from KerasHub. Its tokenizers work the same: outside of `tf.data` they never use TensorFlow.
"""

import importlib
from typing import Any

from everstep.engine.late_tensorflow import not_found
from everstep.errors import missing_extra


def keras_hub() -> Any:
    """Returns the package.

    Raises:
      UsageError: It is not installed.
    """
    try:
        with not_found():
            return importlib.import_module("keras_hub")
    except ImportError as error:
        if error.name != "keras_hub":
            raise
        raise missing_extra("keras-hub", "hub", "a KerasHub model") from None
