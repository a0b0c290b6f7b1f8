"""`ImageDataConfig`: images in files. Imports no Keras."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt

from everstep.config import Config
from everstep.data.config import DataConfig
from everstep.errors import Problem, UsageError


@dataclasses.dataclass
class ImageAugmentation(Config):
    """Random changes of training images, made where they are decoded; none by default.

    What is drawn for an image depends on seed, epoch and the image's number alone.
    """

    flip: Literal["horizontal", "vertical", "horizontal_and_vertical"] | None = None
    """Mirror half of the images, for classes that mirroring does not change."""
    crop: Annotated[float, Gt(0), Le(1)] = 1.0
    """Cut out a random part with at least this share of the area, and scale it to `size`; 1 for the whole image."""
    colour: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Change brightness, contrast and saturation by up to this fraction each."""
    operations: Annotated[int, Ge(0)] = 0
    """Apply so many random operations of RandAugment: rotations, shears, shifts, changes of colours and sharpness."""
    magnitude: Annotated[float, Ge(0), Le(1)] = 0.3
    """How strong those operations are at most, from 0 to 1."""


@dataclasses.dataclass
class ImageDataConfig(DataConfig):
    """Images with a class each, from folders, tables and record files; `input_path` names them.

    | `input_path` | images | labels |
    |---|---|---|
    | a folder | the image files below its subfolders | the subfolder's name |
    | `*.csv`, `*.tsv` | files named in `image_column`, relative to the table's folder | `label_column` |
    | `*.parquet` | encoded bytes in `image_column` | `label_column` |
    | `*.tfrecord`, `*.tfrec` | encoded bytes in the feature `image_column` | the feature `label_column` |

    Batches are `(images, labels)`: uint8 (n, height, width, channels) and int32 (n,).
    """

    _may_change: ClassVar[frozenset[str]] = frozenset({"workers", "worker_kind"})

    size: int | list[int] | None = 224
    """Height and width of the images, `[height, width]`, or one number for both. None: that of the task's model, where
    the task knows it."""
    channels: Literal[1, 3] = 3
    """3 for colour, 1 for grey."""
    resize: Literal["stretch", "crop", "pad"] = "crop"
    """How an image gets that size: stretched, scaled to cover it and cropped at the centre, or padded with black."""
    image_column: str = ""
    """The column or feature with the image. Empty: the first of the usual names: `image`, `path`, `file` …"""
    label_column: str = ""
    """The column or feature with the class, its name or its number. Empty: the first of the usual names."""
    validation_split: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Share of the images that training leaves out and evaluation reads; which ones, follows from their names."""
    augmentation: ImageAugmentation = dataclasses.field(default_factory=ImageAugmentation)
    """Random changes of training images."""
    workers: Annotated[int, Ge(0)] | None = None
    """Images decoded at the same time. None: a worker for each core but one; 0: in the thread that reads batches."""
    worker_kind: Literal["auto", "threads", "processes"] = "auto"
    """Threads or processes. Auto: a thread for one worker; more are processes, which start in about a second."""

    @property
    def height_and_width(self) -> tuple[int, int]:
        """The size of the images.

        Raises:
          UsageError: It is None, and nobody has set it.
        """
        if self.size is None:
            raise UsageError("is required", key="size", remedy="set it to a number, or to [height, width]")
        height, width = [self.size] * 2 if isinstance(self.size, int) else self.size
        return height, width

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        sides = [self.size] if isinstance(self.size, int) else self.size or [1, 1]
        if len(sides) not in (1, 2) or (len(sides) == 1 and not isinstance(self.size, int)):
            yield Problem("size", "must be one number, or [height, width]", received=self.size)
        elif min(sides) < 1:
            yield Problem("size", "must be at least 1", received=self.size)
        if self.tfds_name:
            yield Problem("tfds_name", "is not read here", received=self.tfds_name, remedy="name files in input_path")
        if isinstance(self.input_path, dict):
            yield Problem("input_path", "expected a path, or a list of paths", received=self.input_path)
        if self.cache in (True, "device", "host"):
            reason = "images are decoded in every epoch"
            yield Problem("cache", reason, received=self.cache, remedy="remove it; for small data use arrays")
