"""The MNIST database, 60,000 training and 10,000 test images, as shipped with the package."""

from importlib import resources

import numpy as np

from everstep.data.formats import NumpyFile


def load_mnist(split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 28, 28) and labels (n,), both uint8, of the standard split `train` or `test`.

    Raises:
      KeyError: There is no such split.
    """
    if split not in ("train", "test"):
        raise KeyError(split)
    with resources.as_file(resources.files("everstep.recipes") / "data/mnist.npz") as path, NumpyFile(path) as file:
        return file.read(f"x_{split}"), file.read(f"y_{split}")
