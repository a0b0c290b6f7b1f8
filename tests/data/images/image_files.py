"""Small images in files, for the tests of this folder."""

import io

import numpy as np
from PIL import Image


def picture(number, height=20, width=30, channels=3):
    """Returns smooth pixels that differ from number to number."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [128 + 100 * np.sin(x / (3 + number) + c) * np.cos(y / 4 - number * c) for c in range(channels)]
    return np.stack(waves, -1).astype(np.uint8).squeeze()


def encoded(pixels, kind="PNG", **options):
    data = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(data, kind, **options)
    return data.getvalue()


def write_folder(root, count=11, classes=("cat", "dog", "emu"), **shape):
    """Writes images into a folder per class; returns the folder."""
    for number in range(count):
        path = root / classes[number % len(classes)] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(number, **shape)))
    return root
