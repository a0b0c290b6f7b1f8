"""Trained models to predict with: a run directory with an export and checkpoints, and data of every kind."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import everstep

CLASSES, FEATURES = 3, 4


def samples(count: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns points around three centres, and which of them each belongs to."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, count)
    centres = np.eye(CLASSES, FEATURES) * 2
    return (centres[labels] + generator.normal(size=(count, FEATURES))).astype("float32"), labels.astype("int32")


def train(directory: Path) -> dict[str, Any]:
    """Trains a classifier for two epochs; returns its last logs."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((FEATURES,), name="points"), keras.layers.Dense(8, "relu"), keras.layers.Dense(CLASSES, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = everstep.fit(model, samples(), validation_data=samples(60, 1), epochs=2, model_dir=directory, verbose=0)
    return {name: values[-1] for name, values in history.history.items()}


def write_table(path: Path, x: np.ndarray, **more: Any) -> None:
    """Writes points as a CSV or Parquet file, a column for each number."""
    columns = {f"f{index}": x[:, index] for index in range(x.shape[1])}
    table = pa.table({**more, **columns})
    pq.write_table(table, path) if path.suffix == ".parquet" else pacsv.write_csv(table, path)
