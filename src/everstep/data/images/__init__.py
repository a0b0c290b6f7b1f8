"""Images in files: folders, tables, Parquet and TFRecord files, decoded and augmented by workers.

config.py      `ImageDataConfig`: files, size, augmentation, workers
sources.py     where images come from: folders with a subfolder per class, rows of tables
transforms.py  from encoded bytes to the pixels of a batch; random changes, and each image's generator
stream.py      batches of images that workers decode, resize and augment
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.data.images.config import (
        ImageAugmentation,
        ImageDataConfig,
    )
    from everstep.data.images.sources import (
        ImageSource,
        find_classes,
    )
    from everstep.data.images.stream import ImageStream

__getattr__, __dir__ = lazy_names(__name__, __file__)
