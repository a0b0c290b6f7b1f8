"""The task of `image/folder`: pixels as bytes, cast and scaled on the device."""

from typing import Any

import keras
from keras import layers

from everstep import ClassificationTask
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.task import augmentation_layers


class ImageFilesTask(ClassificationTask):
    """Classifies images in files."""

    def build_model(self) -> keras.Model:
        """Returns a residual network from images of bytes to a logit per class."""
        config = self.task_config
        data, model = config.train_data, config.model
        x = inputs = keras.Input((*data.height_and_width, data.channels), dtype="uint8", name="images")
        x = layers.Rescaling(1 / 127.5, offset=-1)(x)
        for layer in augmentation_layers(config.augmentation):
            x = layer(x)
        x = _convolution(x, model.filters)
        for stage in range(model.stages):
            for _ in range(model.blocks):
                x = _residual(x, model.filters * 2**stage)
            x = layers.MaxPooling2D()(x)
        x = layers.Dropout(model.dropout)(layers.GlobalAveragePooling2D()(x))
        return keras.Model(inputs, layers.Dense(len(config.classes))(x), name="images_classifier")

    def build_inputs(self, params: ImageDataConfig, input_context: Any = None) -> ImageSource:
        """Returns the images of the section, or of the part that training leaves out."""
        data = params if params.is_training else self.task_config.evaluated(params)
        return ImageSource(data, self.task_config.classes)


def _convolution(x: Any, filters: int, activation: str | None = "relu") -> Any:
    x = layers.BatchNormalization(momentum=0.9)(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x))
    return layers.Activation(activation)(x) if activation else x


def _residual(x: Any, filters: int) -> Any:
    """Returns two convolutions, plus the input, projected where the number of filters changes."""
    y = _convolution(_convolution(x, filters), filters, activation=None)
    if x.shape[-1] != filters:
        x = layers.Conv2D(filters, 1, use_bias=False)(x)
    return layers.Activation("relu")(layers.Add()([x, y]))
