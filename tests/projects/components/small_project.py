"""A small project whose classes a test replaces one by one, by adding others of the same name."""

import textwrap

import yaml

from everstep.components import Orchestrator
from everstep.engine import backend
from everstep.projects.components.building import build_components
from everstep.projects.components.data_splits import create_split
from everstep.projects.components.first_batch import check_first_batches
from everstep.projects.components.keras_trainer import KerasTrainer
from everstep.projects.components.run_folder import open_run

ODD = """
    import itertools

    import keras
    import numpy as np

    from everstep.components import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase


    def stacked(values):
        if isinstance(values[0], dict):
            return {key: np.array([value[key] for value in values]) for key in values[0]}
        return np.array(values)


    class Loader(DataLoaderBase):
        n = 10

        def sample(self, row):
            return np.full(4, row / 10), row % 2

        def rows(self):
            return ((*self.sample(row), 1.0 + row) for row in range(10))

        def create_training_generator(self):
            return self.rows(), self.n

        def create_validation_generator(self):
            return self.rows(), 10

        def create_test_generator(self):
            return ((*self.sample(row), f"id_{row}") for row in range(10)), 10

        _set_defaults = _load_params = lambda *_: None


    class Preprocessor(PreprocessorBase):
        def add_image_preprocess(self, generator):
            return generator

        add_label_preprocess = image_preprocess = label_preprocess = add_image_preprocess

        def batchify(self, generator, n):
            return self.batches(generator), -(-n // 4)

        def batches(self, generator):
            while samples := list(itertools.islice(generator, 4)):
                yield tuple(map(stacked, zip(*samples)))

        _set_defaults = _load_params = lambda *_: None


    class Builder(ModelBuilderBase):
        loss = "sparse_categorical_crossentropy"

        def get_compiled_model(self):
            model = self.model()
            model.compile("sgd", self.loss)
            return model

        def model(self):
            return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])

        _set_defaults = _load_params = lambda *_: None


    class Evaluator(EvaluatorBase):
        def get_eval_funcs(self):
            return {"spread": lambda y_true, y_pred: np.ptp(y_pred)}
"""


def write(root, more="", run="a", **changes):
    """Writes a project of one module, whose last classes of a name count, and the config file of a run."""
    (root / "src").mkdir(parents=True, exist_ok=True)
    (root / "src" / "odd.py").write_text(textwrap.dedent(ODD) + textwrap.dedent(more))
    classes = {"data_loader": "Loader", "preprocessor": "Preprocessor", "model_builder": "Builder"}
    values = {f"{key}_class": f"odd.{name}" for key, name in {**classes, "evaluator": "Evaluator"}.items()}
    values |= {"src_code_path": "src", "project_name": "odd", "epochs": 1, "batch_size": 4, **changes}
    folder = root / "runs" / run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return folder


def build_small_components(root, more="", **changes):
    write(root, more, **changes)
    opened = open_run("a", root, None)
    with opened.project.active():
        return build_components(opened.config, opened.project)


def preflight(root, more):
    made = build_small_components(root, more)
    check_first_batches(made, *(create_split(made, name) for name in ("training", "validation", "test")))


def run(root, **options):
    return Orchestrator("a", root, verbose=False, **options).run()


def trained_by_itself(root, allow_change=()):
    """Trains and does nothing else."""
    opened = open_run("a", root, None)
    with opened.project.active():
        backend.prepare(opened.config.seed)
        made = build_components(opened.config, opened.project)
        trainer = KerasTrainer(made, opened.folder, allow_change=allow_change, verbose=False)
        return trainer.train(create_split(made, "training"), create_split(made, "validation"))
