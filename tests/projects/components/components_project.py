"""A project like those that users have: MNIST as PNG files, classes in `src`, a run's config file."""

import csv
import textwrap
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from everstep.recipes.mnist_data import load_mnist

SIZES = {"train": 60, "validation": 25, "test": 15}

DATASET = """
    import csv

    import numpy as np
    from PIL import Image

    from everstep.components import DataLoaderBase


    class Loader(DataLoaderBase):
        def __init__(self, config, data_dir):
            super().__init__(config, data_dir)
            self.train_data_dir = self.data_dir.joinpath("train")
            self.val_data_dir = self.data_dir.joinpath("validation")
            self.test_data_dir = self.data_dir.joinpath("test")

        @staticmethod
        def _rows(folder):
            with open(folder / "labels.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            return [str(folder / r["image name"]) for r in rows], [int(r["label"]) for r in rows], rows

        def get_validation_index(self):
            return [row["image name"] for row in self._rows(self.val_data_dir)[2]]

        def _load_params(self, config):
            self.shuffle = config.data_loader.shuffle

        def _set_defaults(self):
            self.shuffle = True


    class DataLoader(Loader):
        def create_training_generator(self):
            paths, labels, _ = self._rows(self.train_data_dir)
            return self._generator(paths, labels, self.shuffle), len(paths)

        def create_validation_generator(self):
            paths, labels, _ = self._rows(self.val_data_dir)
            return self._generator(paths, labels, False), len(paths)

        def create_test_generator(self):
            paths, labels, rows = self._rows(self.test_data_dir)
            return self._test_gen(paths, labels, [r["image name"] for r in rows]), len(paths)

        @staticmethod
        def _read_image(path):
            return np.asarray(Image.open(path))

        def _generator(self, paths, labels, shuffle):
            indices = np.arange(len(paths))
            while True:
                if shuffle:
                    np.random.shuffle(indices)
                for index in indices:
                    yield self._read_image(paths[index]), labels[index], 1

        def _test_gen(self, paths, labels, ids):
            for path, label, data_id in zip(paths, labels, ids):
                yield self._read_image(path), label, data_id


    class DataLoaderTF(Loader):
        def _images(self, paths):
            import tensorflow as tf

            files = tf.data.Dataset.from_tensor_slices(paths)
            return files.map(lambda path: tf.image.decode_png(tf.io.read_file(path)))

        def _zipped(self, folder, third):
            import tensorflow as tf

            paths, labels, rows = self._rows(folder)
            thirds = tf.ones(len(paths)) if third is None else [row[third] for row in rows]
            slices = tf.data.Dataset.from_tensor_slices
            return tf.data.Dataset.zip((self._images(paths), slices(labels), slices(thirds))), len(paths)

        def create_training_generator(self):
            ds, n_data = self._zipped(self.train_data_dir, None)
            return (ds.shuffle(n_data) if self.shuffle else ds), n_data

        def create_validation_generator(self):
            return self._zipped(self.val_data_dir, None)

        def create_test_generator(self):
            return self._zipped(self.test_data_dir, "image name")
"""

PREPROCESSING = """
    import numpy as np

    from everstep.components import ConfigStruct, PreprocessorBase


    class Common(PreprocessorBase):
        def label_preprocess(self, label):
            return label

        def _load_params(self, config: ConfigStruct):
            self.normalize_by = config.preprocessor.normalize_by
            self.input_h = config.input_height
            self.input_w = config.input_width
            self.batch_size = config.batch_size

        def _set_defaults(self):
            self.normalize_by = 255
            self.input_h = self.input_w = 28
            self.batch_size = 8

        def n_iter(self, n):
            return n // self.batch_size + int((n % self.batch_size) > 0)


    class Preprocessor(Common):
        def image_preprocess(self, image):
            return np.reshape(image, (self.input_h * self.input_w)) / self.normalize_by

        def add_image_preprocess(self, generator):
            while True:
                x, y, w = next(generator)
                yield self.image_preprocess(x), y, w

        def add_label_preprocess(self, generator):
            while True:
                x, y, w = next(generator)
                yield x, self.label_preprocess(y), w

        def batchify(self, generator, n_data_points):
            return self._batch_gen(generator, self.batch_size), self.n_iter(n_data_points)

        @staticmethod
        def _batch_gen(generator, batch_size):
            while True:
                parts = [], [], []
                for _ in range(batch_size):
                    for part, value in zip(parts, next(generator)):
                        part.append(value)
                yield tuple(np.array(part) for part in parts)


    class PreprocessorTF(Common):
        def image_preprocess(self, image):
            import tensorflow as tf

            return tf.reshape(image, (self.input_h * self.input_w,)) / self.normalize_by

        def add_image_preprocess(self, generator):
            return generator.map(lambda x, y, w: (self.image_preprocess(x), y, w))

        def add_label_preprocess(self, generator):
            return generator

        def batchify(self, generator, n_data_points):
            return generator.batch(self.batch_size).repeat(), self.n_iter(n_data_points)
"""

MODELS = """
    import keras

    from everstep.components import ModelBuilderBase


    class ModelBuilder(ModelBuilderBase):
        def get_compiled_model(self):
            model = keras.models.Sequential([
                keras.Input((self.input_h * self.input_w,)),
                keras.layers.Dense(self.n_filters, activation=self.activation),
                keras.layers.Dropout(self.dropout_rate),
                keras.layers.Dense(10, activation="softmax"),
            ])
            model.compile(
                optimizer="adam",
                loss=keras.losses.SparseCategoricalCrossentropy(),
                metrics=[keras.metrics.SparseCategoricalAccuracy()],
            )
            return model

        def _load_params(self, config):
            m_config = config.model_builder
            self.activation = m_config.activation
            self.n_filters = m_config.n_filters
            self.dropout_rate = m_config.dropout_rate
            self.input_h = config.input_height
            self.input_w = config.input_width

        def _set_defaults(self):
            self.activation = "relu"
            self.n_filters = 16
            self.dropout_rate = 0.2
            self.input_h = self.input_w = 28
"""

EVALUATION = """
    import keras

    from everstep.components import EvaluatorBase


    class Evaluator(EvaluatorBase):
        def get_eval_funcs(self):
            return {"sparse categorical ce": self.get_cat_loss()}

        def get_cat_loss(self, from_logits=False):
            def scce_loss(y_true, y_pred):
                scce = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
                return scce(y_true, y_pred)

            return scce_loss


    class Own(EvaluatorBase):
        def get_eval_funcs(self):
            return None
"""

SOURCES = {
    "dataset.py": DATASET,
    "preprocessing.py": PREPROCESSING,
    "models.py": MODELS,
    "evaluation.py": EVALUATION,
}


def config(flavour: str = "", **changes: Any) -> dict[str, Any]:
    """The configuration of a run; a change to None removes the key."""
    values = {
        "input_height": 28,
        "input_width": 28,
        "src_code_path": "src",
        "data_loader_class": f"dataset.DataLoader{flavour}",
        "preprocessor_class": f"preprocessing.Preprocessor{flavour}",
        "model_builder_class": "models.ModelBuilder",
        "evaluator_class": "evaluation.Evaluator",
        "epochs": 2,
        "batch_size": 8,
        "data_loader": {"shuffle": True},
        "model_builder": {"name": "baseline", "activation": "relu", "n_filters": 16, "dropout_rate": 0.2},
        "preprocessor": {"normalize_by": 255},
        "export": {"metric": "val_loss", "mode": "min"},
        "project_name": "mnist",
        **changes,
    }
    return {key: value for key, value in values.items() if value is not None}


def write_source(root: Path, **replaced: str) -> None:
    """Writes the project's classes; `models="…"` replaces a module, or adds one."""
    (root / "src").mkdir(parents=True, exist_ok=True)
    for name, text in {**SOURCES, **{f"{stem}.py": text for stem, text in replaced.items()}}.items():
        (root / "src" / name).write_text(textwrap.dedent(text))


def write_run(root: Path, run: str = "a", flavour: str = "", **changes: Any) -> Path:
    """Writes a run's config file; returns its folder."""
    folder = root / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config(flavour, **changes), sort_keys=False))
    return folder


def write_data(root: Path) -> Path:
    """Writes the images, `SIZES` of each split."""
    first = 0
    for split, size in SIZES.items():
        images, labels = load_mnist("train" if split == "train" else "test")
        folder = root / "datasets" / "mnist" / split
        folder.mkdir(parents=True)
        with open(folder / "labels.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["", "image name", "label"])
            for row in range(size):
                Image.fromarray(images[first + row]).save(folder / f"image_{row}.png")
                writer.writerow([row, f"image_{row}.png", labels[first + row]])
        first += size
    return root / "datasets" / "mnist"
