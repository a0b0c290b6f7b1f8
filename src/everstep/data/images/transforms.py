"""From a decoded image to the pixels of a batch: cut, scaled, and in training changed at random.

Everything that is drawn for an image comes from one generator, `sample_generator(seed, epoch, index)`: not from the
images before it. So order, number of workers and resume change no pixel.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from everstep.data.formats.images import BadImage, decode
from everstep.data.images.config import ImageAugmentation, ImageDataConfig

_BILINEAR = Image.Resampling.BILINEAR
_GAP = 2  # a JPEG file is decoded at no less than twice the size it is scaled to, which keeps the quality
_NARROWEST = math.log(3 / 4)  # of a random part, relative to the size it is scaled to; the widest is 4 / 3

Box = tuple[float, float, float, float]


def sample_generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Returns the generator of one image in one epoch.

    It has the key of the epoch's own generator (`randomness.generator`), and a range of its counter for each image.
    """
    key = np.array([seed % 2**64, epoch % 2**64], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, index + 1]))


@dataclasses.dataclass(frozen=True)
class Transform:
    """Turns encoded images into arrays of one shape.

    Attributes:
      height: Rows of the result.
      width: Columns of the result.
      channels: 1 or 3.
      resize: `stretch`, `crop` or `pad`; see `ImageDataConfig`.
      augmentation: What is changed at random, if a generator is passed.
    """

    height: int
    width: int
    channels: int
    resize: str
    augmentation: ImageAugmentation

    @classmethod
    def of(cls, config: ImageDataConfig) -> "Transform":
        """Returns the transform that a config describes."""
        return cls(*config.height_and_width, config.channels, config.resize, config.augmentation)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the result."""
        return self.height, self.width, self.channels

    def __call__(self, data: bytes, random: np.random.Generator | None = None) -> np.ndarray:
        """Returns the pixels, uint8 (height, width, channels).

        Args:
          data: The content of an image file.
          random: The image's generator; None for no random changes.

        Raises:
          BadImage: The bytes are not an image, or it is too small to be cropped.
        """
        part = None if random is None or self.augmentation.crop == 1 else random.random(4)
        image = decode(data, self.channels, lambda width, height: self._enough(width, height, part))
        image = self._scaled(image, self._box(*image.size, part))
        if random is not None:
            image = augmented(image, self.augmentation, random)
        return np.asarray(image).reshape(self.shape)

    def _box(self, width: int, height: int, part: np.ndarray | None) -> Box:
        """Returns what is cut out of an image: left, upper, right and lower edge."""
        if part is not None:
            return self._random_box(width, height, part)
        if self.resize != "crop":
            return 0, 0, width, height
        scale = min(width / self.width, height / self.height)
        left, upper = (width - scale * self.width) / 2, (height - scale * self.height) / 2
        return left, upper, left + scale * self.width, upper + scale * self.height

    def _random_box(self, width: int, height: int, part: np.ndarray) -> Box:
        """Returns a part by four numbers from 0 to 1: for its area, its shape, and its place across and down."""
        least = self.augmentation.crop
        if min(width, height) * math.sqrt(least) < 1:
            raise BadImage(f"is too small for augmentation.crop={least}: {width}×{height} pixels")
        area = width * height * (least + (1 - least) * part[0])
        ratio = self.width / self.height * math.exp(_NARROWEST * (1 - 2 * part[1]))
        across = min(math.sqrt(area * ratio), width)
        down = min(math.sqrt(area / ratio), height)
        left, upper = (width - across) * part[2], (height - down) * part[3]
        return left, upper, left + across, upper + down

    def _enough(self, width: int, height: int, part: np.ndarray | None) -> tuple[int, int]:
        """Returns the size at which the part that is cut out has `_GAP` times as many pixels as needed."""
        left, upper, right, lower = self._box(width, height, part)
        fit = min if self.resize == "pad" else max
        scale = _GAP * fit(self.width / (right - left), self.height / (lower - upper))
        return math.ceil(width * scale), math.ceil(height * scale)

    def _scaled(self, image: Image.Image, box: Box) -> Image.Image:
        size = self.width, self.height
        if self.resize != "pad":
            return image if image.size == size and box == (0, 0, *size) else image.resize(size, _BILINEAR, box)
        across, down = box[2] - box[0], box[3] - box[1]
        scale = min(self.width / across, self.height / down)
        inner = max(1, round(across * scale)), max(1, round(down * scale))
        inside = image if image.size == inner and box == (0, 0, *inner) else image.resize(inner, _BILINEAR, box)
        if inner == size:
            return inside
        padded = Image.new(image.mode, size)
        padded.paste(inside, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2))
        return padded


def augmented(image: Image.Image, config: ImageAugmentation, random: np.random.Generator) -> Image.Image:
    """Returns an image with the random changes that a config asks for; `crop` was done before."""
    if config.flip in ("horizontal", "horizontal_and_vertical") and random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if config.flip in ("vertical", "horizontal_and_vertical") and random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    if config.colour:
        for enhance, number in zip(_COLOURS, random.random(len(_COLOURS)), strict=True):
            image = enhance(image).enhance(1 + config.colour * (2 * number - 1))
    names = list(OPERATIONS)
    for which, direction in random.random((config.operations, 2)):
        sign = 1 if direction < 0.5 else -1
        image = OPERATIONS[names[int(which * len(names))]](image, sign * config.magnitude)
    return image


_COLOURS = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)

Operation = Callable[[Image.Image, float], Image.Image]
"""Changes an image; the number is from -1 to 1, and 0 changes little or nothing."""


def _affine(matrix: Callable[[float, int, int], tuple[float, ...]]) -> Operation:
    def apply(image: Image.Image, strength: float) -> Image.Image:
        data = matrix(strength, *image.size)
        return image.transform(image.size, Image.Transform.AFFINE, data, _BILINEAR)

    return apply


def _enhanced(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength: kind(image).enhance(1 + 0.9 * strength)


OPERATIONS: Mapping[str, Operation] = {
    "identity": lambda image, strength: image,
    "rotate": lambda image, strength: image.rotate(30 * strength, _BILINEAR),
    "shear_x": _affine(lambda strength, width, height: (1, 0.3 * strength, -0.15 * strength * height, 0, 1, 0)),
    "shear_y": _affine(lambda strength, width, height: (1, 0, 0, 0.3 * strength, 1, -0.15 * strength * width)),
    "translate_x": _affine(lambda strength, width, height: (1, 0, 0.3 * strength * width, 0, 1, 0)),
    "translate_y": _affine(lambda strength, width, height: (1, 0, 0, 0, 1, 0.3 * strength * height)),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "saturation": _enhanced(ImageEnhance.Color),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
    "posterize": lambda image, strength: ImageOps.posterize(image, 8 - round(4 * abs(strength))),
    "solarize": lambda image, strength: ImageOps.solarize(image, round(256 * (1 - abs(strength)))),
    "autocontrast": lambda image, strength: ImageOps.autocontrast(image),
    "equalize": lambda image, strength: ImageOps.equalize(image),
}
"""The operations of RandAugment, by name; empty space becomes black."""
