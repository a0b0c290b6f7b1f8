"""NumPy arrays from arrays and tensors of any backend."""

from typing import Any

import numpy as np


def host_array(value: Any) -> np.ndarray:
    """Returns a NumPy array from an array or a tensor of any backend."""
    if hasattr(value, "detach"):  # a PyTorch tensor, which may have gradients or be on a device
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # unknown to NumPy
    return np.asarray(value)
