"""The start of one contender on a model of many variables: `python -m benchmarks.growth_process layers 1000 fit`.

It ends when the first step is done. Imports count for neither: of Everstep they take half a second, whatever the model.
The last line is JSON.
"""

import argparse
import json
import sys
import time
from typing import Any

import keras
import numpy as np

from everstep.frontends.fit.fitting import fit

BATCH = 16


def main() -> None:
    """Starts to train, and prints the CPU seconds until the first step was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["weights", "layers"])
    parser.add_argument("count", type=int)
    parser.add_argument("contender")
    options = parser.parse_args()
    sys.setrecursionlimit(100_000)  # Keras walks through a deep model by recursion
    model = many_weights(options.count) if options.model == "weights" else many_layers(options.count)
    model.compile("adam", "mse")
    x = np.random.default_rng(0).random((BATCH, 4), np.float32)
    y = x.sum(1, keepdims=True)
    stamps: list[float] = []
    first = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stamps.append(time.process_time()))
    call: dict[str, Any] = {"batch_size": BATCH, "epochs": 1, "verbose": 0, "callbacks": [first]}
    begin = time.process_time()
    if options.contender == "fit":
        model.fit(x, y, **call)
    else:
        fit(model, x, y, seed=0, **call)
    print(json.dumps({"start": stamps[0] - begin}), flush=True)


class Many(keras.layers.Layer):
    """A layer with many weights."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def build(self, shape: Any) -> None:
        """Creates the weights."""
        self.parts = [self.add_weight(shape=(4,), name=f"part_{number}") for number in range(self.count)]

    def call(self, x: Any) -> Any:
        """Multiplies by their sum."""
        parts = [keras.ops.convert_to_tensor(part) for part in self.parts]
        return keras.ops.sum(x * keras.ops.sum(keras.ops.stack(parts), axis=0), axis=-1, keepdims=True)


def many_weights(count: int) -> keras.Model:
    """Returns a model of one layer with so many weights."""
    inputs = keras.Input((4,))
    return keras.Model(inputs, Many(count)(inputs))


def many_layers(count: int) -> keras.Model:
    """Returns a model of small dense layers, ten in a row, with so many weights."""
    inputs = keras.Input((4,))
    rows, left = [], count // 2 - 1
    while left:
        row, length = inputs, min(left, 10)
        for _ in range(length):
            row = keras.layers.Dense(4, activation="tanh")(row)
        rows.append(row)
        left -= length
    merged = keras.layers.add(rows) if len(rows) > 1 else rows[0]
    return keras.Model(inputs, keras.layers.Dense(1)(merged))


if __name__ == "__main__":
    main()
