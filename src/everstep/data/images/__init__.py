"""Images in files: folders, tables, Parquet and TFRecord files, decoded and augmented by workers.

config.py      `ImageDataConfig`: files, `size` 224, channels, `resize` crop, stretch or pad, augmentation,
               `validation_split`, workers: keys, defaults, refusals
sources.py     which images there are: folders per class, tables, TFRecords; names and order of the classes, which
               image is validation, files that are no images
transforms.py  from image to pixels: crop, scale, pad; random flips, crops, colours, and the generator of each image
stream.py      batches that workers decode: order, threads or processes, how far ahead; an image that cannot be read
               is named
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
