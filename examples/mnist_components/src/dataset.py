"""Data loaders: `DataLoaderTF` returns samples as a `tf.data.Dataset`, `DataLoader` as Python generators.

Both read folders as `generate_data.py` writes them. Samples are `(image, label, sample_weight)`, of test data
`(image, label, data_id)`; with them comes how many there are.
"""

import numpy as np
import pandas as pd
import tensorflow as tf
from PIL import Image

from everstep.components import DataLoaderBase


class MnistFolders(DataLoaderBase):
    """What both loaders share: the folders, and the labels files in them."""

    def __init__(self, config, data_dir):
        super().__init__(config, data_dir)

        self.train_data_dir = self.data_dir.joinpath("train")
        self.val_data_dir = self.data_dir.joinpath("validation")
        self.test_data_dir = self.data_dir.joinpath("test")

    def get_validation_index(self):
        return self._read_labels_df(self.val_data_dir)["image name"].to_numpy()

    @staticmethod
    def _read_labels_df(data_dir):
        labels_df = pd.read_csv(data_dir / "labels.csv")
        labels_df["path"] = [str(data_dir / name) for name in labels_df["image name"]]
        return labels_df

    def _load_params(self, config):
        self.shuffle = config.data_loader.shuffle

    def _set_defaults(self):
        self.shuffle = True


class DataLoaderTF(MnistFolders):
    def create_training_generator(self):
        return self._dataset(self.train_data_dir, shuffle=self.shuffle)

    def create_validation_generator(self):
        return self._dataset(self.val_data_dir)

    def create_test_generator(self):
        return self._dataset(self.test_data_dir, third="image name")

    def _dataset(self, data_dir, third=None, shuffle=False):
        """Names are shuffled and files read afterwards, so that no image waits in memory for its turn."""
        labels_df = self._read_labels_df(data_dir)
        n_data = len(labels_df)
        thirds = tf.ones(n_data) if third is None else list(labels_df[third])
        rows = tf.data.Dataset.from_tensor_slices((list(labels_df["path"]), list(labels_df["label"]), thirds))
        if shuffle:
            rows = rows.shuffle(n_data)
        return rows.map(lambda path, label, third: (self._read_image_tf(path), label, third)), n_data

    @staticmethod
    def _read_image_tf(path):
        """Returns (28, 28, 1), of a PNG file as well; JPEG files are decoded as Pillow does it, which takes longer."""
        return tf.image.decode_jpeg(tf.io.read_file(path), channels=1, dct_method="INTEGER_ACCURATE")


class DataLoader(MnistFolders):
    def create_training_generator(self):
        labels_df = self._read_labels_df(self.train_data_dir)
        return self._generator(labels_df["path"], labels_df["label"], self.shuffle), len(labels_df)

    def create_validation_generator(self):
        labels_df = self._read_labels_df(self.val_data_dir)
        return self._generator(labels_df["path"], labels_df["label"], False), len(labels_df)

    def create_test_generator(self):
        labels_df = self._read_labels_df(self.test_data_dir)
        return self._test_gen(labels_df["path"], labels_df["label"], labels_df["image name"]), len(labels_df)

    @staticmethod
    def _read_image(path):
        """Returns (28, 28)."""
        with Image.open(path) as image:
            return np.asarray(image.convert("L"))

    def _generator(self, image_paths, label_array, shuffle):
        """Never ends: the number of samples of an epoch is returned with it."""
        indxs = np.arange(len(image_paths))
        while True:
            if shuffle:
                np.random.shuffle(indxs)
            for ind in indxs:
                yield self._read_image(image_paths[ind]), label_array[ind], 1

    def _test_gen(self, image_paths, label_array, data_ids):
        for path, label, data_id in zip(image_paths, label_array, data_ids, strict=True):
            yield self._read_image(path), label, data_id
