"""How much memory has been in use at most."""

import resource
import sys
from typing import Any

import keras


def peak_bytes() -> int:
    """Returns the most memory in use so far: that of the device, or, where there is only a CPU, of this process."""
    on_device = {"tensorflow": _tensorflow_peak, "jax": _jax_peak, "torch": _torch_peak}[keras.backend.backend()]()
    return on_device or host_peak_bytes()


def host_peak_bytes() -> int:
    """Returns the most memory that this process has had in use so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _tensorflow_peak() -> int:
    config: Any = sys.modules["tensorflow"].config
    return int(config.experimental.get_memory_info("GPU:0")["peak"]) if config.list_logical_devices("GPU") else 0


def _jax_peak() -> int:
    stats = sys.modules["jax"].local_devices()[0].memory_stats()  # None on a CPU
    return int((stats or {}).get("peak_bytes_in_use", 0))


def _torch_peak() -> int:
    cuda: Any = sys.modules["torch"].cuda
    return int(cuda.max_memory_reserved()) if cuda.is_available() else 0
