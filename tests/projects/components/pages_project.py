"""A project with three small problems: shapes to be told apart, numbers to be summed, discs to be found."""

import textwrap
from pathlib import Path
from typing import Any

import yaml

HOSTILE = "</p><script>window.hacked=1</script><img src=x onerror=window.hacked=1> **not bold** [no](javascript:link)"

PROBLEMS = """
    import itertools

    import keras
    import numpy as np

    from everstep.components import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase
    from everstep.evaluation import AbsoluteError, Accuracy, CrossEntropy, IoUScore


    class Plain:
        def _set_defaults(self):
            self.batch_size = 8

        def _load_params(self, config):
            self.batch_size = config.batch_size


    class Loader(Plain, DataLoaderBase):
        SIZES = {"training": 24, "validation": 20, "test": 13}

        def create_training_generator(self):
            return self.samples("training"), 24

        def create_validation_generator(self):
            return self.samples("validation"), 20

        def create_test_generator(self):
            named = zip(itertools.count(), self.samples("test"))
            return ((x, y, f"{'left' if i % 3 else 'right'}_{i}") for i, (x, y, _) in named), 13

        def samples(self, split):
            random = np.random.default_rng(self.SIZES[split])
            return ((*self.sample(random), self.weight) for _ in range(self.SIZES[split]))

        weight = 1.0


    class Shapes(Loader):
        def sample(self, random):
            label = int(random.integers(3))
            image = random.uniform(0, 0.4, (12, 12))
            image[2 + 3 * label : 5 + 3 * label, 2:10] += 0.5
            return image, label


    class Sums(Loader):
        def sample(self, random):
            x = random.normal(size=4)
            return x, float(x.sum())


    class Discs(Loader):
        weight = np.ones((16, 16))

        def sample(self, random):
            grid = np.mgrid[0:16, 0:16] - random.uniform(4, 12, (2, 1, 1))
            mask = ((grid**2).sum(axis=0) < 16).astype("float32")[..., None]
            return np.clip(mask + random.normal(size=mask.shape) * 0.1, 0, 1), mask


    class Preprocessor(Plain, PreprocessorBase):
        def image_preprocess(self, image):
            return image

        def label_preprocess(self, label):
            return label

        def add_image_preprocess(self, generator):
            return ((self.image_preprocess(x), y, w) for x, y, w in generator)

        def add_label_preprocess(self, generator):
            return generator

        def batchify(self, generator, n_data_points):
            return self.batches(generator), -(-n_data_points // self.batch_size)

        def batches(self, generator):
            while samples := list(itertools.islice(generator, self.batch_size)):
                yield tuple(np.array(part) for part in zip(*samples))


    class Flattened(Preprocessor):
        def image_preprocess(self, image):
            return image.reshape(-1)


    class Builder(Plain, ModelBuilderBase):
        def get_compiled_model(self):
            model = keras.Sequential(self.layers())
            model.compile(self.optimizer, self.loss, metrics=self.metrics)
            return model

        optimizer, metrics = "adam", []


    class Classifier(Builder):
        loss, metrics = "sparse_categorical_crossentropy", ["accuracy"]

        def layers(self):
            return [keras.Input((144,)), keras.layers.Dense(3, "softmax")]


    class Regressor(Builder):
        loss, metrics = "mse", ["mae"]

        def layers(self):
            return [keras.Input((4,)), keras.layers.Dense(1)]


    class Segmenter(Builder):
        loss = "binary_crossentropy"

        def layers(self):
            return [keras.Input((16, 16, 1)), keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")]


    class Classified(EvaluatorBase):
        def get_eval_funcs(self):
            return [CrossEntropy(), Accuracy()]

        def get_class_names(self):
            return ["upper", "middle", "lower"]

        def get_columns(self, x, y, data_id):
            return {"side": data_id.split("_")[0] if "_" in data_id else "none", "brightness": float(x.mean())}

        def show(self, x):
            return x.reshape(12, 12)


    class Regressed(EvaluatorBase):
        def get_eval_funcs(self):
            return [AbsoluteError()]


    class Segmented(EvaluatorBase):
        def get_eval_funcs(self):
            return [IoUScore()]


    class Silent(EvaluatorBase):
        def get_eval_funcs(self):
            return None
"""

CLASSES = {
    "classes": ("Shapes", "Flattened", "Classifier", "Classified"),
    "numbers": ("Sums", "Preprocessor", "Regressor", "Regressed"),
    "masks": ("Discs", "Preprocessor", "Segmenter", "Segmented"),
}

DESCRIBED = {
    "model_details": {"name": "Bars <b>", "overview": f"{HOSTILE}\n\nA second paragraph.", "documentation": "none yet"},
    "model_parameters": {
        "model_architecture": "one dense layer",
        "data": {"name": "bars", "description": "drawn", "link": "https://example.org/bars?a=1&b=2"},
        "input_format": "144 numbers",
    },
    "considerations": {"users": "testers", "use_cases": ["testing", HOSTILE], "limitations": "1. knows | three bars\n"},
}


def write_project(root: Path) -> None:
    """Writes the project's classes."""
    (root / "src").mkdir(parents=True)
    (root / "src" / "problems.py").write_text(textwrap.dedent(PROBLEMS))


def write_run(root: Path, problem: str, **changes: Any) -> Path:
    """Writes the config file of the run on one of the problems; returns its folder."""
    keys = ("data_loader_class", "preprocessor_class", "model_builder_class", "evaluator_class")
    config = {
        "src_code_path": "src",
        "project_name": "small",
        "epochs": 2,
        "batch_size": 8,
        **{key: f"problems.{name}" for key, name in zip(keys, CLASSES[problem], strict=True)},
        **changes,
    }
    folder = root / "runs" / problem
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return folder
