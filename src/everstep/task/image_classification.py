"""Image classification, with the variation of images inside the model."""

import abc
from typing import Any

import keras
from keras import layers

from everstep.task.augmentation_config import AugmentationConfig
from everstep.task.classification import ClassificationTask


class ImageClassificationTask(ClassificationTask):
    """Tells images apart. Write `build_classifier` and `build_inputs`.

    The config's `augmentation`, if there is one, becomes the model's first layers. They are active in training alone:
    an evaluation, a prediction and the exported model leave images as they are. Their random numbers are part of the
    run's state, so a resumed run goes on with the variations that come next.
    """

    @abc.abstractmethod
    def build_classifier(self) -> keras.Model:
        """Returns the model from images (height, width, channels) to a logit per class."""

    def build_model(self) -> keras.Model:
        """Returns the classifier behind the augmentation layers."""
        classifier = self.build_classifier()
        varied = augmentation_layers(getattr(self.task_config, "augmentation", None))
        if not varied:
            return classifier
        return keras.Sequential([keras.Input(classifier.input_shape[1:]), *varied, classifier], name="augmented")


def augmentation_layers(config: AugmentationConfig | None) -> list[keras.Layer]:
    """Returns the layers that a config asks for; empty space is filled with zeros."""
    if config is None:
        return []
    shared: dict[str, Any] = {"fill_mode": "constant"}
    made = [
        config.flip and layers.RandomFlip(config.flip),
        config.rotation and layers.RandomRotation(config.rotation, **shared),
        config.translation and layers.RandomTranslation(config.translation, config.translation, **shared),
        config.zoom and layers.RandomZoom(config.zoom, **shared),
    ]
    return [layer for layer in made if layer]
