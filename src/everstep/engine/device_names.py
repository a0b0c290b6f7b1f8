"""The devices that the backend computes on: their names, kinds and peak memory.

Listing the devices initializes them.
"""

import importlib
import logging
import resource
import sys
from collections.abc import Callable
from typing import Any

import keras

logger = logging.getLogger(__name__)


def devices() -> list[str]:
    """Returns the devices as `gpu:0`, `gpu:1`: the accelerators, or, where there are none, the CPU."""
    if keras.backend.backend() != "torch":
        return list(keras.distribution.list_devices())
    torch = sys.modules["torch"]  # Keras does not list its devices
    if not torch.accelerator.is_available():
        return ["cpu:0"]
    kind = torch.accelerator.current_accelerator().type
    return [f"{'gpu' if kind == 'cuda' else kind}:{index}" for index in range(torch.accelerator.device_count())]


def has_accelerator() -> bool:
    """Returns whether the backend computes on a GPU, a TPU or another accelerator."""
    return any(not device.startswith("cpu") for device in devices())


def has_gpu() -> bool:
    """Returns whether the backend computes on a GPU."""
    return any(device.startswith(("gpu", "cuda", "rocm")) for device in devices())


def device_kind() -> str:
    """Returns the name of the device, such as `NVIDIA H100 80GB HBM3`, or `cpu`; empty if it is unknown."""
    try:
        return _KINDS[keras.backend.backend()]()
    except Exception as error:  # it is only reported: never a reason to fail
        logger.debug("device unknown: %s: %s", type(error).__name__, error)
        return ""


def _tensorflow_kind() -> str:
    config: Any = sys.modules["tensorflow"].config
    gpus = config.list_physical_devices("GPU")
    return str(config.experimental.get_device_details(gpus[0]).get("device_name", "")) if gpus else "cpu"


def _torch_kind() -> str:
    cuda: Any = sys.modules["torch"].cuda
    return str(cuda.get_device_name()) if cuda.is_available() else "cpu"


_KINDS: dict[str, Callable[[], str]] = {
    "tensorflow": _tensorflow_kind,
    "jax": lambda: str(sys.modules["jax"].devices()[0].device_kind),
    "torch": _torch_kind,
}


def free_bytes() -> int | None:
    """Returns the free memory of the device, the least of several; None on a CPU, or if it is unknown."""
    try:
        return {"tensorflow": _tensorflow_free, "jax": _jax_free, "torch": _torch_free}[keras.backend.backend()]()
    except Exception as error:  # unknown: the caller must do without
        logger.debug("free device memory unknown: %s: %s", type(error).__name__, error)
        return None


def _tensorflow_free() -> int | None:
    config: Any = sys.modules["tensorflow"].config
    if not config.list_logical_devices("GPU"):
        return None
    listed = importlib.import_module("tensorflow.python.client.device_lib").list_local_devices()
    limit = min(int(device.memory_limit) for device in listed if device.device_type == "GPU")
    return limit - int(config.experimental.get_memory_info("GPU:0")["current"])


def _jax_free() -> int | None:
    stats = [device.memory_stats() for device in sys.modules["jax"].local_devices()]  # None on a CPU
    known = [one for one in stats if one and "bytes_limit" in one]
    return min((int(one["bytes_limit"]) - int(one["bytes_in_use"]) for one in known), default=None)


def _torch_free() -> int | None:
    cuda: Any = sys.modules["torch"].cuda
    return int(cuda.mem_get_info()[0]) if cuda.is_available() else None


def peak_bytes() -> int:
    """Returns the peak memory of the device so far; on a CPU, that of this process."""
    on_device = {"tensorflow": _tensorflow_peak, "jax": _jax_peak, "torch": _torch_peak}[keras.backend.backend()]()
    return on_device or host_peak_bytes()


def host_peak_bytes() -> int:
    """Returns the peak memory of this process so far."""
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
