"""Every way to train a compiled model, for the contract in `everstep.testing.entry_points`.

python entry_points.py fit FOLDER     # trains in FOLDER, and dies in the last epoch if KILLED_RUN is set
"""

import sys
import textwrap
from pathlib import Path
from unittest import mock

import numpy as np
import yaml

import everstep
from everstep.components import Orchestrator
from everstep.flow import DataSet, FlowTask, run_flow
from everstep.testing.entry_points import (
    BATCH,
    EPOCHS,
    LOSS,
    SEED,
    VALIDATION,
    EntryPoint,
    KillInTheLastEpoch,
    Refusal,
    X,
    Y,
    build_model,
    compiled_model,
    kill_in_the_last_epoch,
)


class Rows(everstep.Stream):
    """The rows in their order, batch by batch."""

    def __init__(self, x, y, repeat):
        self._x, self._y = x, y
        super().__init__(repeat=repeat, batches_per_epoch=len(x) // BATCH)

    def open(self, epoch, batch):
        return (
            (self._x[at : at + BATCH], self._y[at : at + BATCH]) for at in range(batch * BATCH, len(self._x), BATCH)
        )


class Fit(EntryPoint):
    shorter = {"epochs": EPOCHS - 1}
    refused_on_resume = [
        Refusal({"epochs": 2}, "epochs"),
        Refusal({"batch_size": 4}, "batch_size"),
        Refusal({"optimizer": "sgd"}, "optimizer.class"),
        Refusal({"seed": 6}, "seed"),
    ]
    bad_input = [
        Refusal({"epochs": -1}, "epochs"),
        Refusal({"batch_size": 0}, "batch_size"),
        Refusal({"seed": "five"}, "seed"),
    ]

    def run(self, folder, epochs=EPOCHS, optimizer="adam", **changes):
        given = {"batch_size": BATCH, "shuffle": False, "seed": SEED, "verbose": 0, **changes}
        given |= {"validation_data": VALIDATION, "callbacks": [KillInTheLastEpoch()]}
        everstep.fit(compiled_model(optimizer), X, Y, epochs=epochs, model_dir=folder / "run", **given)
        return folder / "run"


class Training(EntryPoint):
    shorter = {"epochs": EPOCHS - 1}
    refused_on_resume = [
        Refusal({"epochs": 2}, "epochs"),
        Refusal({"optimizer": "sgd"}, "optimizer.class"),
        Refusal({"seed": 6}, "seed"),
    ]
    bad_input = [
        Refusal({"epochs": 0}, "epochs"),
        Refusal({"loss": "no_such_loss"}, "loss"),
        Refusal({"seed": "five"}, "seed"),
    ]

    def run(self, folder, epochs=EPOCHS, **changes):
        given = {"optimizer": "adam", "loss": LOSS, "seed": SEED, "verbose": False, **changes}
        training = everstep.Training(build_model_func=build_model, job_dir=folder / "run", **given)
        training.add_callback(KillInTheLastEpoch())
        training.run_train(Rows(X, Y, True), Rows(*VALIDATION, False), epochs)
        return folder / "run"


class Experiment(EntryPoint):
    """`run_experiment`, where an action takes the place of the callback."""

    shorter = {"train_steps": 10}
    refused_on_resume = [
        Refusal({"train_steps": 10}, "trainer.train_steps"),
        Refusal({"seed": 6}, "runtime.seed"),
    ]
    bad_input = [
        Refusal({"train_steps": -1}, "trainer.train_steps"),
        Refusal({"mode": "no_such_mode"}, "mode"),
    ]

    def run(self, folder, train_steps=5 * EPOCHS, seed=SEED, mode="train_and_eval"):
        params = everstep.ExperimentConfig(runtime=everstep.RuntimeConfig(seed=seed))
        every = dict.fromkeys(("steps_per_loop", "validation_interval", "checkpoint_interval"), 5)
        params.override({"trainer": {"train_steps": train_steps, **every}})
        task = everstep.CompiledTask(compiled_model(), Rows(X, Y, True), Rows(*VALIDATION, False), params.task)
        actions = [kill_in_the_last_epoch()]
        everstep.run_experiment(task, params, folder / "run", mode, train_actions=actions, export=False, verbose=False)
        return folder / "run"


PROJECT = """
    import itertools

    import numpy as np

    from everstep.components import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase
    from everstep.testing.entry_points import KillInTheLastEpoch, build_model


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
            model = build_model()
            model.compile("adam", "sparse_categorical_crossentropy")
            return model

        def get_callbacks(self):
            return [KillInTheLastEpoch()]

        def _set_defaults(self):
            pass

        def _load_params(self, config):
            pass


    class Evaluator(EvaluatorBase):
        def get_eval_funcs(self):
            return {"certainty": lambda y_true, y_pred: y_pred.max()}
"""


class Components(EntryPoint):
    shorter = {"epochs": EPOCHS - 1}
    refused_on_resume = [Refusal({"seed": 6}, "seed"), Refusal({"epochs": 2}, "epochs")]
    bad_input = [Refusal({"epochs": -1}, "epochs"), Refusal({"seed": "five"}, "seed")]

    def run(self, folder, **changes):
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
        (run / "config.yaml").write_text(yaml.safe_dump(config | changes))
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
        return build_model()

    def build_callbacks(self):
        return [KillInTheLastEpoch()]


class Flow(EntryPoint):
    shorter = {"epoch": EPOCHS - 1}
    refused_on_resume = [
        Refusal({"epoch": 2}, "epoch"),
        Refusal({"batch_size": 4}, "batch_size"),
        Refusal({"seed": 6}, "seed"),
    ]
    bad_input = [Refusal({"epoch": -1}, "SmallFlow.epoch"), Refusal({"loss": "no_such_loss"}, "SmallFlow.loss")]

    def run(self, folder, **changes):
        if not (folder / "config").exists():
            (folder / "config").mkdir(parents=True)
            (folder / "pyproject.toml").write_text('[project]\nname = "rows"\n')
            (folder / "config" / "catalog.yaml").write_text("rows: rows.npz\n")
            np.savez(folder / "rows.npz", x=X, y=Y)
        values = {"epoch": EPOCHS, "batch_size": BATCH, "seed": SEED, "shuffle": False, "metrics": [], "loss": LOSS}
        (folder / "config" / "parameters.yaml").write_text(yaml.safe_dump({"SmallFlow": values | changes}))
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
