"""A small project of flows: random numbers, one dense layer, a task that fails or is killed on request."""

import sqlite3
import textwrap
from pathlib import Path

import numpy as np

TRAIN = """
import os
import pathlib
import signal

import keras
from everstep.flow import DataSet, FlowTask, main


class Numbers_A(FlowTask):
    def fetch_data(self):
        self.raw = self.catalog.load("numbers.raw")

    def preprocessing_train(self):
        raw = self.raw
        self.dataset = DataSet(raw["x"][:96], raw["y"][:96], raw["x"][96:], raw["y"][96:])

    def build_model(self):
        layers = [keras.Input((4,)), keras.layers.Dropout(0.1), keras.layers.Dense(3, activation="softmax")]
        return keras.Sequential(layers, name="linear")

    def build_callbacks(self):
        return [Accident(self.params.fails_in, self.params.killed_in)]


class Accident(keras.callbacks.Callback):
    '''Happens once, in the middle of an epoch.'''

    def __init__(self, fails_in, killed_in):
        super().__init__()
        self.fails_in, self.killed_in, self.epoch = fails_in, killed_in, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        if batch < 2 or self.epoch not in (self.fails_in, self.killed_in) or FLAG.exists():
            return
        FLAG.touch()
        if self.epoch == self.killed_in:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the disk is on fire")


class Numbers_B(Numbers_A):
    pass


class Unfinished(FlowTask):
    def fetch_data(self):
        pass


class OwnRun(Numbers_A):
    def run(self):
        self.fetch_data()
        self.log_metrics({"answer": 42.0}, step=3)
        if self.params.fails_in and not FLAG.exists():
            FLAG.touch()
            raise RuntimeError("no answer")
        return {"answer": 42.0}


class Unready(Numbers_A):
    def fetch_data(self):
        self.raw = dict(__import__("numpy").load(self.catalog.path("numbers.raw")))

    def preprocessing_train(self):
        if self.params.fails_in and not FLAG.exists():
            FLAG.touch()
            raise RuntimeError("no memory left")
        super().preprocessing_train()


class More(Numbers_A):
    def run(self):
        self.log_metrics({"before": 1.0})
        metrics = super().run()
        if self.params.fails_in == 99 and not FLAG.exists():
            FLAG.touch()
            raise RuntimeError("after the training")
        self.log_metrics({"after": 2.0})
        return metrics

    def build_serving_model(self, model):
        return keras.Sequential([keras.Input((4,)), keras.layers.Rescaling(2.0), *model.layers])


FLAG = pathlib.Path(__file__).with_name("happened")

if __name__ == "__main__":
    main(default="Numbers_A")
"""

PARAMETERS = """
experiment: numbers_exp
shared:
  size: 16

Numbers_A:
  epoch: 2
  batch_size: ${shared.size}
  fails_in: null
  killed_in: null
  widths: {first: 3, second: '${.first}'}

Numbers_B:
  epoch: 3
"""

CATALOG = """
numbers:
  raw: data/raw/numbers.npz
"""

OPTIMIZER = """
optimizer: {type: sgd}
learning_rate: {type: constant, constant: {learning_rate: 0.1}}
"""


def write_project(root: Path, name: str = "numbers-project") -> Path:
    """Writes the project; returns its folder."""
    files = {
        "pyproject.toml": f'[project]\nname = "{name}"\nversion = "0.1"\n',
        "__init__.py": "",
        "train.py": TRAIN,
        "config/parameters.yaml": PARAMETERS,
        "config/catalog.yaml": CATALOG,
        "config/optimizer.yaml": OPTIMIZER,
    }
    for file, text in files.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    write_numbers(root / "data" / "raw" / "numbers.npz")
    return root


def write_numbers(path: Path, seed: int = 0) -> None:
    """Writes 128 samples of three classes that a line tells apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(seed).normal(size=(128, 4)).astype("float32")
    np.savez(path, x=x, y=np.digitize(x[:, 0], [-0.4, 0.4]).astype("int32"))


def mlflow_rows(project, query):
    """Returns what the project's MLflow has stored."""
    with sqlite3.connect(project / "mlflow.db") as database:
        return database.execute(query).fetchall()
