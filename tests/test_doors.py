"""One core behind every door: the same model, data, order and seed end in the same weights, whichever way they came."""

import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml

import everstep
from everstep.components import Orchestrator
from everstep.flow import DataSet, FlowTask, run_flow

pytestmark = pytest.mark.backend

EPOCHS, BATCH, SEED = 3, 8, 5
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(40, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
VALID = X[:16], Y[:16]

PROJECT = """
    import itertools

    import keras
    import numpy as np

    from everstep.components import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase


    class Loader(DataLoaderBase):
        def arrays(self, split):
            with np.load(self.data_dir / "data.npz") as data:
                x, y = data["x"], data["y"]
            return (x, y) if split == "train" else (x[:16], y[:16])

        def create_training_generator(self):
            return self.samples("train"), 40

        def create_validation_generator(self):
            return self.samples("valid"), 16

        def create_test_generator(self):
            x, y = self.arrays("valid")
            return ((x[row], y[row], str(row)) for row in range(16)), 16

        def samples(self, split):
            x, y = self.arrays(split)
            while True:
                for row in range(len(x)):
                    yield x[row], y[row], 1.0

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass


    class Preprocessor(PreprocessorBase):
        def image_preprocess(self, image):
            return image

        def label_preprocess(self, label):
            return label

        def add_image_preprocess(self, generator):
            return generator

        def add_label_preprocess(self, generator):
            return generator

        def batchify(self, generator, n_data_points):
            return self.batches(generator), n_data_points // 8

        def batches(self, generator):
            while samples := list(itertools.islice(generator, 8)):
                x, y, w = zip(*samples)
                yield np.array(x), np.array(y), np.array(w, "float32")

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass


    class Builder(ModelBuilderBase):
        def get_compiled_model(self):
            inputs = keras.Input((4,))
            hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(6, "relu")(inputs))
            model = keras.Model(inputs, keras.layers.Dense(2, "softmax")(hidden))
            model.compile("adam", "sparse_categorical_crossentropy")
            return model

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass


    class Evaluator(EvaluatorBase):
        def get_eval_funcs(self):
            return {"certainty": lambda y_true, y_pred: y_pred.max()}
"""


FLOW = """
Doors:
  {epoch: 3, batch_size: 8, seed: 5, shuffle: false, metrics: [], loss: sparse_categorical_crossentropy}
"""


def build():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(6, "relu")(inputs))
    return keras.Model(inputs, keras.layers.Dense(2, "softmax")(hidden))


class Rows(everstep.Stream):
    """The rows in their order, batch by batch."""

    def __init__(self, x, y, repeat):
        self._x, self._y = x, y
        super().__init__(repeat=repeat, batches_per_epoch=len(x) // BATCH)

    def open(self, epoch, batch):
        return (
            (self._x[at : at + BATCH], self._y[at : at + BATCH]) for at in range(batch * BATCH, len(self._x), BATCH)
        )


def by_fit():
    everstep.engine.backend.prepare(SEED)
    model = build()
    model.compile("adam", "sparse_categorical_crossentropy")
    order = {"batch_size": BATCH, "shuffle": False, "seed": SEED}
    everstep.fit(model, X, Y, validation_data=VALID, epochs=EPOCHS, verbose=False, **order)
    return model.get_weights()


def by_training(folder):
    training = everstep.Training(
        build_model_func=build,
        job_dir=folder,
        optimizer="adam",
        loss="sparse_categorical_crossentropy",
        seed=SEED,
        verbose=False,
    )
    training.run_train(Rows(X, Y, True), Rows(*VALID, False), EPOCHS)
    return training.model.get_weights()


def by_orchestrator(folder):
    run = folder / "runs" / "one"
    run.mkdir(parents=True)
    (folder / "src").mkdir()
    (folder / "src" / "parts_of_doors.py").write_text(textwrap.dedent(PROJECT))
    np.savez(folder / "data.npz", x=X, y=Y)
    names = {
        "data_loader": "Loader",
        "preprocessor": "Preprocessor",
        "model_builder": "Builder",
        "evaluator": "Evaluator",
    }
    classes = {f"{part}_class": f"parts_of_doors.{name}" for part, name in names.items()}
    config = {"src_code_path": "src", **classes, "epochs": EPOCHS, "seed": SEED, "project_name": "doors"}
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "export": {"metric": "val_loss", "mode": "min"}}))
    Orchestrator("one", folder, folder, verbose=False).run()
    return run


class Doors(FlowTask):
    """The same as a flow."""

    def fetch_data(self):
        self.raw = self.catalog.load("doors")

    def preprocessing_train(self):
        x, y = self.raw["x"], self.raw["y"]
        self.dataset = DataSet(x, y, validation_data=x[:16], validation_label=y[:16])

    def build_model(self):
        return build()


def by_flow(folder, monkeypatch):
    monkeypatch.setattr("everstep.flow.tracking.tracking_uri", lambda root: None)
    (folder / "config").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "doors"\n')
    (folder / "config" / "parameters.yaml").write_text(FLOW)
    (folder / "config" / "catalog.yaml").write_text("doors: doors.npz\n")
    np.savez(folder / "doors.npz", x=X, y=Y)
    return run_flow(Doors, (), folder, verbose=False).directory


def test_the_same_weights_through_every_door(tmp_path, monkeypatch):
    fitted, trained = by_fit(), by_training(tmp_path / "job")
    for ours, theirs in zip(trained, fitted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    run, flow = by_orchestrator(tmp_path / "project"), by_flow(tmp_path / "flow", monkeypatch)
    digests = [
        everstep.run.record.read(Path(directory))["weights_digest"]
        for directory in (tmp_path / "job", run / "training", flow)
    ]
    assert len(set(digests)) == 1, digests
