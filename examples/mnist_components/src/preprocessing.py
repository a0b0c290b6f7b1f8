"""From samples to batches: `PreprocessorTF` for a `tf.data.Dataset`, `Preprocessor` for Python generators."""

import itertools

import numpy as np
import tensorflow as tf

from everstep.components import ConfigStruct, PreprocessorBase


class MnistPreprocessor(PreprocessorBase):
    """What both share: the parameters, and how many batches there are."""

    def label_preprocess(self, label):
        return label

    def _n_iter(self, n_data_points):
        return n_data_points // self.batch_size + int((n_data_points % self.batch_size) > 0)

    def _load_params(self, config: ConfigStruct):
        self.normalize_by = config.preprocessor.normalize_by
        self.input_h = config.input_height
        self.input_w = config.input_width
        self.batch_size = config.batch_size

    def _set_defaults(self):
        self.normalize_by = 255
        self.input_h = 28
        self.input_w = 28
        self.batch_size = 8


class PreprocessorTF(MnistPreprocessor):
    def image_preprocess(self, image):
        return tf.reshape(image, (self.input_h * self.input_w,)) / self.normalize_by

    def _wrapper_image_preprocess(self, x, y, w):
        return self.image_preprocess(x), y, w

    def add_image_preprocess(self, generator):
        return generator.map(self._wrapper_image_preprocess)

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n_data_points):
        """Repeats what is batched, not the other way round: so each epoch has every sample once."""
        return generator.batch(self.batch_size).repeat(), self._n_iter(n_data_points)


class Preprocessor(MnistPreprocessor):
    def image_preprocess(self, image):
        return np.reshape(image, (self.input_h * self.input_w,)) / self.normalize_by

    def add_image_preprocess(self, generator):
        for x, y, w in generator:
            yield self.image_preprocess(x), y, w

    def add_label_preprocess(self, generator):
        for x, y, w in generator:
            yield x, self.label_preprocess(y), w

    def batchify(self, generator, n_data_points):
        return self._batch_gen(generator, self.batch_size), self._n_iter(n_data_points)

    @staticmethod
    def _batch_gen(generator, batch_size):
        """The last batch of a generator that ends has what is left."""
        while samples := list(itertools.islice(generator, batch_size)):
            yield tuple(np.array(part) for part in zip(*samples, strict=True))
