"""The MNIST database, 60,000 training and 10,000 test images, as shipped with the package."""

from importlib import resources

import numpy as np


def load_mnist(split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 28, 28) and labels (n,), both uint8, of the standard split `train` or `test`."""
    with resources.files("everstep.recipes").joinpath("data/mnist.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        return arrays[f"x_{split}"], arrays[f"y_{split}"]
