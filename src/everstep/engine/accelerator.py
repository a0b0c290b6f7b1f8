"""Does this machine compute on anything but its CPU?"""

import keras


def has_accelerator() -> bool:
    """Returns whether Keras knows of a GPU, a TPU or the like."""
    return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
