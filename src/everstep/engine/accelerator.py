"""Does this machine compute on anything but its CPU?"""

import sys

import keras


def has_accelerator() -> bool:
    """Returns whether Keras knows of a GPU, a TPU or the like."""
    if keras.backend.backend() == "torch":  # Keras knows of its devices by what PyTorch says
        return bool(sys.modules["torch"].accelerator.is_available())
    return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
