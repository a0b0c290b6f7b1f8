"""A folder of images, of any depth, or one image: each is a sample, and its path within the folder is its id."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from everstep.errors import UsageError
from everstep.inference.specs import Spec

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class ImageFolder:
    """Images as numbers from 0 to 255; what else is to happen to them, the exported model does itself.

    Args:
      path: The folder, or an image.
      specs: The model's inputs.
      resize: Whether images of another size are made to fit, bilinear; they are an error otherwise.

    Raises:
      UsageError: The model takes no images, there are none, or one cannot be opened or has another size.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], resize: bool = False) -> None:
        if len(specs) != 1 or len(specs[0].shape) not in (2, 3) or specs[0].dtype == "string":
            taken = ", ".join(f"{spec.name} {spec}" for spec in specs)
            raise UsageError(f"--input: {str(path)!r} is images, but the model takes {taken}")
        self._folder = path if path.is_dir() else path.parent
        self._spec, self._resize = specs[0], resize
        self._mode = self._mode_of(specs[0])
        self._files = _images(path) if path.is_dir() else [path]
        self.count: int | None = len(self._files)
        for file in self._files:
            self._check(file)

    def batches(self, size: int) -> Iterator[tuple[Sequence[Any], list[np.ndarray]]]:
        """Yields all images in order of their paths, at most `size` at a time."""
        open_size = None in self._spec.shape[:2] and not self._resize
        for start in range(0, len(self._files), 1 if open_size else size):
            some = self._files[start : start + (1 if open_size else size)]
            arrays = np.stack([self._pixels(path) for path in some])
            yield [path.relative_to(self._folder).as_posix() for path in some], [self._spec.cast(arrays)]

    def _mode_of(self, spec: Spec) -> str:
        channels = spec.shape[2] if len(spec.shape) == 3 else 1
        if channels not in (None, *_MODES):
            raise UsageError(f"--input: the model takes {spec}, which no image is: 1, 3 or 4 channels come last")
        return _MODES[channels or 3]

    def _check(self, path: Path) -> None:
        try:
            with Image.open(path) as image:
                width, height = image.size
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise UsageError(f"--input: the image {str(path)!r} cannot be opened: {error}") from error
        fits = all(want in (None, size) for want, size in zip(self._spec.shape, (height, width), strict=False))
        if not fits and not self._resize:
            raise UsageError(
                f"--input: the image {str(path)!r} is {height}x{width}, but the model takes {self._spec}: scale it, or "
                "have that done with --resize"
            )

    def _pixels(self, path: Path) -> np.ndarray:
        try:
            with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
                pixels = image.convert(self._mode)
        except (OSError, ValueError) as error:
            raise UsageError(f"--input: the image {str(path)!r} is damaged: {error}") from error
        height, width = self._spec.shape[:2]
        if self._resize and height and width and pixels.size != (width, height):
            pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
        array = np.asarray(pixels)
        return array[..., None] if len(self._spec.shape) == 3 and array.ndim == 2 else array


def _images(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not found:
        raise UsageError(f"--input: there is no image ({', '.join(SUFFIXES)}) in {str(folder)!r}")
    return found
