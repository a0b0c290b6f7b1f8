"""The task of `hub/image_classifier`: a KerasHub classifier of images, trained whole or by adapters."""

from typing import Any

import keras
from keras import ops

from everstep import ClassificationTask
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.errors import UsageError
from everstep.recipes.hub.text_classifier import load_classifier
from everstep.types import Batch

KIND = "ImageClassifier"


class ImageClassifierTask(ClassificationTask):
    """Classifies images with the model of a preset.

    Batches have images as bytes. They are scaled as the preset says, on the device; the model itself takes scaled ones.
    """

    _scale: Any = 1.0
    _offset: Any = 0.0
    _sizes: tuple[Any, ...] = ()

    def build_model(self) -> keras.Model:
        """Returns the model of the preset with a logit per class."""
        model = load_classifier(KIND, self.task_config)
        converter = getattr(model.preprocessor, "image_converter", None)
        self._scale = 1.0 if converter is None or converter.scale is None else converter.scale
        self._offset = 0.0 if converter is None or converter.offset is None else converter.offset
        fixed = tuple(model.input_shape[1:3])
        usual = getattr(converter, "image_size", None) or (None, None)
        self._sizes = tuple(one or other for one, other in zip(fixed, usual, strict=True))
        for name in ("train_data", "validation_data"):
            size = getattr(self.task_config, name).size
            given = fixed if size is None else getattr(self.task_config, name).height_and_width
            if any(one not in (None, side) for one, side in zip(fixed, given, strict=True)):
                raise UsageError(
                    f"the model of the preset takes images of {fixed[0]} × {fixed[1]}",
                    key=f"task.{name}.size",
                    received=size,
                    remedy=f"set it to {list(fixed)}, or remove it",
                )
        return model

    def base_weights(self) -> str:
        """Returns the preset, which provides the weights that are not trained."""
        return self.task_config.preset if self.task_config.load_weights else ""

    def unpack(self, inputs: Batch) -> tuple[Any, Any, Any]:
        """Returns scaled images, labels and sample weights of a batch."""
        images, labels, weight = super().unpack(inputs)
        return self._scaled(images), labels, weight

    def _scaled(self, images: Any) -> Any:
        floats = ops.cast(images, "float32")
        return floats * ops.cast(self._scale, "float32") + ops.cast(self._offset, "float32")

    def build_inputs(self, params: ImageDataConfig, input_context: Any = None) -> ImageSource:
        """Returns the images that `params` name, with the number of the class of each.

        Raises:
          UsageError: They cannot be used, or their size is not set, and the preset has none.
        """
        if params.size is None:
            params = params.replace(size=self._size())
        return ImageSource(params, self.task_config.classes)

    def _size(self) -> Any:
        """Returns the size of images for which none is set: that of the training data, or of the preset."""
        if self.task_config.train_data.size is not None:
            return self.task_config.train_data.size
        if not self._sizes:  # nobody has built a model yet
            self.build_model()
        if None in self._sizes:
            reason = "is required: the model of the preset takes images of any size"
            raise UsageError(reason, key="size", remedy="set it to a number, or to [height, width]")
        return list(self._sizes)
