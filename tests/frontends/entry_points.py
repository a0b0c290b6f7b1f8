"""Every way to train a compiled model, as small objects that one test runs, kills and compares.

    python entry_points.py fit FOLDER     # trains in FOLDER, and dies inside epoch 2 if EVERSTEP_TEST_KILL is set

An entry point has `run(folder)`. It trains the same model on the same data, or resumes, and returns the run directory.
"""

import os
import signal
import sys
import textwrap
import time
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import yaml

import everstep
from everstep.components import Orchestrator
from everstep.engine import backend
from everstep.flow import DataSet, FlowTask, run_flow

EPOCHS, BATCH, SEED, KILL = 3, 8, 5, "EVERSTEP_TEST_KILL"
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(40, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
VALID = X[:16], Y[:16]
LOSS = "sparse_categorical_crossentropy"


def kill_if_asked():
    """Ends this process at once, as a lost machine would, when one checkpoint is there."""
    if folder := os.environ.get(KILL):
        while not list(Path(folder).rglob("checkpoints/*/manifest.json")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


class Killer(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        if len(self.model.history.epoch) == 2:  # the third epoch is trained, and not evaluated yet
            kill_if_asked()


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


def compiled():
    backend.prepare(SEED)
    model = build()
    model.compile("adam", LOSS)
    return model


class Fit:
    def run(self, folder):
        order = {"batch_size": BATCH, "shuffle": False, "seed": SEED, "verbose": 0, "callbacks": [Killer()]}
        everstep.fit(compiled(), X, Y, validation_data=VALID, epochs=EPOCHS, model_dir=folder / "run", **order)
        return folder / "run"


class Training:
    def run(self, folder):
        training = everstep.Training(
            build_model_func=build, job_dir=folder / "run", optimizer="adam", loss=LOSS, seed=SEED, verbose=False
        )
        training.add_callback(Killer())
        training.run_train(Rows(X, Y, True), Rows(*VALID, False), EPOCHS)
        return folder / "run"


class Experiment:
    """`run_experiment`, where an action takes the place of the callback."""

    def run(self, folder):
        params = everstep.ExperimentConfig(runtime=everstep.RuntimeConfig(seed=SEED))
        every = dict.fromkeys(("steps_per_loop", "validation_interval", "checkpoint_interval"), 5)
        params.override({"trainer": {"train_steps": 5 * EPOCHS, **every}})
        windows = []

        def action(logs):
            windows.append(logs)
            if len(windows) == EPOCHS:
                kill_if_asked()

        task = everstep.CompiledTask(compiled(), Rows(X, Y, True), Rows(*VALID, False), params.task)
        everstep.run_experiment(
            task, params, folder / "run", "train_and_eval", train_actions=[action], export=False, verbose=False
        )
        return folder / "run"


PROJECT = """
    import itertools

    import keras
    import numpy as np
    from entry_points import Killer

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

        def get_callbacks(self):
            return [Killer()]

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass


    class Evaluator(EvaluatorBase):
        def get_eval_funcs(self):
            return {"certainty": lambda y_true, y_pred: y_pred.max()}
"""


class Components:
    def run(self, folder):
        run = folder / "runs" / "one"
        if not run.exists():
            run.mkdir(parents=True)
            (folder / "src").mkdir()
            (folder / "src" / "project_parts.py").write_text(textwrap.dedent(PROJECT))
            np.savez(folder / "data.npz", x=X, y=Y)
            names = {"data_loader": "Loader", "preprocessor": "Preprocessor", "model_builder": "Builder"}
            names["evaluator"] = "Evaluator"
            classes = {f"{part}_class": f"project_parts.{name}" for part, name in names.items()}
            config = {"src_code_path": "src", **classes, "epochs": EPOCHS, "seed": SEED, "project_name": "parts"}
            config["export"] = {"metric": "val_loss", "mode": "min"}
            (run / "config.yaml").write_text(yaml.safe_dump(config))
        Orchestrator("one", folder, folder, verbose=False).run()
        return run / "training"


class SmallFlow(FlowTask):
    """The same as a flow."""

    def fetch_data(self):
        self.raw = self.catalog.load("rows")

    def preprocessing_train(self):
        x, y = self.raw["x"], self.raw["y"]
        self.dataset = DataSet(x, y, validation_data=x[:16], validation_label=y[:16])

    def build_model(self):
        return build()

    def build_callbacks(self):
        return [Killer()]


class Flow:
    def run(self, folder):
        if not (folder / "config").exists():
            (folder / "config").mkdir(parents=True)
            (folder / "pyproject.toml").write_text('[project]\nname = "rows"\n')
            values = {"epoch": EPOCHS, "batch_size": BATCH, "seed": SEED, "shuffle": False, "metrics": [], "loss": LOSS}
            (folder / "config" / "parameters.yaml").write_text(yaml.safe_dump({"SmallFlow": values}))
            (folder / "config" / "catalog.yaml").write_text("rows: rows.npz\n")
            np.savez(folder / "rows.npz", x=X, y=Y)
        with mock.patch("everstep.projects.flow.recording.tracking_uri", return_value=None):
            return run_flow(SmallFlow, (), folder, model_dir=folder / "run", verbose=False).directory


ENTRY_POINTS = {
    "fit": Fit(),
    "training": Training(),
    "components": Components(),
    "flow": Flow(),
    "experiment": Experiment(),
}


def main(name, folder):
    ENTRY_POINTS[name].run(Path(folder))


if __name__ == "__main__":
    import entry_points  # as the other processes know it, by its name

    entry_points.main(*sys.argv[1:])
