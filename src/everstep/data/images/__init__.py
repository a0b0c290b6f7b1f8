"""Images in files: folders, tables, Parquet and TFRecord files, decoded and augmented by workers."""

from everstep.data.images.config import ImageAugmentation, ImageDataConfig
from everstep.data.images.sources import ImageSource, find_classes
from everstep.data.images.stream import ImageStream

__all__ = ["ImageAugmentation", "ImageDataConfig", "ImageSource", "ImageStream", "find_classes"]
