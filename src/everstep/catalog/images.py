"""Images with a table of labels: a folder of image files and, in it, a CSV file with the columns `file` and `label`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.catalog.dataset import Dataset
from everstep.catalog.tables import Csv
from everstep.config.problem import show
from everstep.errors import UsageError, nearest

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
_MODES = {"L": 1, "RGB": 3, "RGBA": 4}
_FILES = "images"


class Images(Dataset):
    """Images of one size and what the table says of each.

        data/raw/cats/labels.csv        file,label
                                        images/0.png,cat
        data/raw/cats/images/0.png

    The value is a mapping: `image` is an array of uint8 (samples, height, width, channels), `file` the names in the
    table, `label` and every other column an array.
    """

    marker = "labels.csv"

    def load(
        self,
        path: Path,
        *,
        size: Sequence[int] | None = None,
        mode: str | None = None,
        decode: bool = True,
        dtype: Mapping[str, str] | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns images and columns.

        Args:
          path: The folder.
          size: Height and width to scale to; without it all images must have the same.
          mode: `L` for grey, `RGB`, `RGBA`; by default that of the first image.
          decode: False leaves the images alone, for data that does not fit into memory: `file` has whole paths then.
          dtype: Types of columns, as for CSV: `{label: text}` keeps `007`.
        """
        columns = _table(path / self.marker, dtype)
        files = [_inside(path, name) for name in columns["file"]]
        if not decode:
            return {**columns, "file": np.array([str(file) for file in files])}
        return {"image": _decoded(files, size, mode), **columns}

    def save(self, value: Any, path: Path) -> None:
        """Writes images as PNG files below `images/`; names in `file` are used where there are any."""
        columns = _checked(value)
        count = len(columns["image"])
        names = columns.get("file", np.array([f"{_FILES}/{number:05d}.png" for number in range(count)]))
        for name, image in zip(names, columns.pop("image"), strict=True):
            _write(image, path, str(name))
        rest = {name: column for name, column in columns.items() if name != "file"}
        Csv().save({"file": [str(name) for name in names], **rest}, path / self.marker)


def _table(path: Path, dtype: Mapping[str, str] | None) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UsageError(f"there is no {path.name} in it: a CSV file with the columns file,label")
    columns = Csv().load(path, dtype={"file": "text", **(dtype or {})}, form="columns")
    for name in ("file", "label"):
        if name not in columns:
            raise UsageError(f"{path.name} has no column {name!r}; {nearest(name, columns)}")
    if not len(columns["file"]):
        raise UsageError(f"{path.name} has no row")
    return columns


def _inside(folder: Path, name: Any) -> Path:
    """Returns an image's path; a name that leads out of the folder is refused."""
    file = folder / str(name)
    if name is None or not file.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"the table names {show(name)}, which is not in the folder")
    if not file.is_file():
        raise UsageError(f"the table names {str(name)!r}, and there is no such file: {file}")
    return file


def _decoded(files: Sequence[Path], size: Sequence[int] | None, mode: str | None) -> np.ndarray:
    if size is not None and (len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size)):
        raise UsageError(f"load_args.size: expected [height, width], received {show(size)}")
    if mode is not None and mode not in _MODES:
        raise UsageError(f"load_args.mode: received {show(mode)}; {nearest(str(mode), _MODES)}")
    first = _image(files[0], size, mode)
    mode = {channels: name for name, channels in _MODES.items()}[first.shape[-1]]
    images = np.empty((len(files), *first.shape), np.uint8)
    for number, file in enumerate(files):
        image = _image(file, size, mode)
        if image.shape != first.shape:
            raise UsageError(
                f"{file} has {image.shape[0]} x {image.shape[1]} pixels, {files[0].name} {first.shape[0]} x "
                f"{first.shape[1]}: say load_args: {{size: [height, width]}}"
            )
        images[number] = image
    return images


def _image(file: Path, size: Sequence[int] | None, mode: str | None) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(file, formats=_FORMATS) as opened:
            image = opened.convert(mode or (opened.mode if opened.mode in _MODES else "RGB"))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(f"{file} is no image that can be read: {error}") from error
    if size is not None and (image.height, image.width) != tuple(size):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _checked(value: Any) -> dict[str, np.ndarray]:
    if not isinstance(value, Mapping) or not {"image", "label"} <= set(value):
        raise UsageError(f"expected {{'image': array, 'label': array}}, received {show(value)}")
    columns = {str(name): np.asarray(column) for name, column in value.items()}
    image = columns["image"]
    if image.dtype != np.uint8 or image.ndim != 4 or image.shape[-1] not in _MODES.values() or not image.size:
        raise UsageError(
            f"'image' must be uint8 (samples, height, width, 1, 3 or 4), received {image.dtype} {image.shape}"
        )
    for name, column in columns.items():
        if name != "image" and column.shape != (len(image),):
            raise UsageError(f"{name!r} must have one value for each of {len(image)} images, received {column.shape}")
    return columns


def _write(pixels: np.ndarray, folder: Path, name: str) -> None:
    from PIL import Image

    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()) or file.suffix.lower() != ".png" or file.exists():
        raise UsageError(f"'file': {name!r} must be a name of its own in the folder that ends in .png")
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file)
