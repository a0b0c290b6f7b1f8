"""The devices that the backend computes on; to ask for them wakes them."""

import sys

import keras


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
    """Returns whether this machine computes on a GPU, a TPU or the like."""
    return any(not device.startswith("cpu") for device in devices())
