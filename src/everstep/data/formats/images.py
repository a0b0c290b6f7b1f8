"""Images from encoded bytes, by Pillow: safely, upright, as 8-bit pixels with a fixed number of channels.

How pixels of other kinds become 8-bit grey or RGB:

| the file has | becomes |
|---|---|
| an EXIF orientation | the image as a viewer shows it: rotated or mirrored |
| transparency | the image on white, as a browser shows it; kept if four channels are requested |
| 16 bits per channel | the upper 8 bits |
| CMYK, YCbCr, Lab, a palette, black and white | RGB by Pillow's formulas; colour profiles are ignored |
| several frames | the first one |
| 32 bits per pixel of grey | an error: their range is not known |

Only this file asks Pillow to open an image: what is limited or refused here is limited and refused for everybody.
"""

import io
import os
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageOps

from everstep.data.formats.bad_file import BadFile

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")
"""The formats that are read; Pillow's others are rare, or start programs."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")
"""The names of image files in folders, in lower case."""

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name for 8-bit pixels, by their number of channels."""

Choose = Callable[[int, int], tuple[int, int]]
"""Returns how many pixels (width, height) of an image of that width and height are enough."""

_SIGNATURES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP"}
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # values of the orientation that swap width and height


class BadImage(BadFile):
    """Bytes that cannot be used as an image; the text says why."""


def decode(data: bytes, channels: int | None, enough: Choose | None = None) -> Image.Image:
    """Decodes an image.

    Args:
      data: The content of an image file.
      channels: 1 for grey, 3 for RGB, 4 for RGBA; None for those of the image, which are 3 if it is in none of these.
      enough: Called with the image's size, upright. A JPEG file may then be decoded at a half, a fourth or an eighth
        of its size, but not smaller than the result; that saves most of the time for large photographs.

    Raises:
      BadImage: The bytes are not an image in one of `FORMATS`, are damaged, or the image has more pixels than Pillow's
        limit `PIL.Image.MAX_IMAGE_PIXELS`.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _require_modest_size(image)
            orientation = _orientation(image)
            if enough is not None and image.format == "JPEG":
                sideways = orientation in _SIDEWAYS
                width, height = image.size[::-1] if sideways else image.size
                wanted = enough(width, height)
                image.draft(None, wanted[::-1] if sideways else wanted)
            image.load()
            upright = image if orientation == 1 else ImageOps.exif_transpose(image)
            own = image.mode if image.mode in MODES.values() else "RGB"
            return _converted(upright, own if channels is None else MODES[channels])
    except Exception as error:
        raise _bad_image(error) from error


def upright_size(data: bytes | os.PathLike[str]) -> tuple[int, int]:
    """Returns width and height of an image as a viewer shows it; only the start of the file is read.

    Raises:
      BadImage: It is not an image, or has too many pixels; see `decode`.
    """
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=FORMATS) as image:
            _require_modest_size(image)
            width, height = image.size
            return (height, width) if _orientation(image) in _SIDEWAYS else (width, height)
    except Exception as error:
        raise _bad_image(error) from error


def image_kind(data: bytes) -> str | None:
    """Returns the format of an image file's bytes, None if TensorFlow does not decode it."""
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)


def _bad_image(error: Exception) -> BadImage:
    """Returns the error for what Pillow's decoders raise, which is of many kinds."""
    if isinstance(error, BadImage):
        return error
    if isinstance(error, Image.UnidentifiedImageError):
        return BadImage(f"is not an image in a known format ({', '.join(FORMATS)})")
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return BadImage(f"is too large: {error}")
    return BadImage(f"is damaged: {' '.join(str(error).split())}")


def _require_modest_size(image: Image.Image) -> None:
    """Refuses images that Pillow would only warn about: a small file may decode to gigabytes."""
    width, height = image.size
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and width * height > most:
        raise BadImage(f"is too large: {width}×{height} pixels, and PIL.Image.MAX_IMAGE_PIXELS is {most}")


def _orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation, 1 if there is none: a damaged EXIF block says nothing about the pixels."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # as above
        return 1
    return orientation if orientation in range(1, 9) else 1


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == mode and not image.has_transparency_data:
        return image
    if image.mode == "F" or image.mode == "I" and image.getextrema()[1] > 0xFFFF:  # type: ignore[operator]
        raise BadImage("has 32 bits per pixel, whose range is not known: convert it to 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.has_transparency_data and mode != "RGBA":
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
