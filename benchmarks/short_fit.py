"""What a short call of `everstep.fit` costs, whole, compared with `model.fit`: 50 steps, the first call and later ones.

Each contender runs in a fresh process, alternately: the first call of a process traces and compiles, the second
should not. Imports are not counted. The bar: at most 1.1 times the seconds of `model.fit`, for the first call and for
the second.

    python -m benchmarks short_fit --rounds 5                                    # all backends and models
    python -m benchmarks.short_fit --backend jax [--models mlp,cnn] [--rounds 5] [--validation]
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.options import Options
from benchmarks.results import OURS, Case, show

BAR = 1.1
BATCH, STEPS = 32, 50
CALLS = ("first call", "second call")
MODELS = ("mlp", "cnn", "lstm", "transformer")
FIT = "fit"


def main() -> int:
    """Runs both contenders for each model, prints seconds and ratios, then JSON; 1 where a bar is not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="jax", choices=["jax", "tensorflow", "torch"])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=3, help="processes per contender and model (default 3)")
    parser.add_argument("--validation", action="store_true", help="evaluate at the end of the epoch, too")
    parser.add_argument("--contender", choices=[OURS, FIT], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        print(json.dumps(call(arguments.contender, arguments.models, arguments.validation)))
        return 0
    cases = []
    for model in arguments.models.split(","):
        for case in measure(arguments.backend, model, arguments.rounds, arguments.validation):
            show(case)
            cases.append(case)
    print(json.dumps({"cases": [dataclasses.asdict(case) for case in cases]}))
    return 0 if all(case.ratio(FIT) >= 1 / BAR for case in cases) else 1


def run(options: Options) -> Iterator[Case]:
    """Yields two cases for each backend and model: the first call of a process, and the second."""
    for backend in options.installed_backends:
        for model in MODELS:
            yield from measure(backend, model, options.rounds)


def case_name(model: str, backend: str, which: str) -> str:
    """Returns the name of a case."""
    return f"{model}, {backend}, {which}"


def measure(backend: str, model: str, rounds: int, validation: bool = False) -> list[Case]:
    """Returns the seconds of the first call and of the second."""
    seconds: dict[str, list[list[float]]] = {FIT: [], OURS: []}
    for _ in range(rounds):
        for contender in seconds:
            command = [sys.executable, "-m", "benchmarks.short_fit", "--models", model, "--contender", contender]
            command += ["--validation"] if validation else []
            environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
            result = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, env=environment
            )
            seconds[contender].append(json.loads(result.stdout.splitlines()[-1]))
    return [
        Case(
            case_name(model, backend, which),
            "s",
            {contender: [calls[number] for calls in processes] for contender, processes in seconds.items()},
        )
        for number, which in enumerate(CALLS)
    ]


# -- one contender, in a process of its own ----------------------------------------------------------------------------


def call(contender: str, name: str, validation: bool) -> list[float]:
    """Returns the seconds of each of several calls with one model."""
    import keras

    import everstep

    keras.utils.set_random_seed(0)
    model, x, y = MODEL_BUILDERS[name]()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    fit = everstep.fit if contender == OURS else keras.Model.fit
    extra = {"validation_data": (x[: 10 * BATCH], y[: 10 * BATCH])} if validation else {}
    seconds = []
    for _ in CALLS:
        begin = time.perf_counter()
        fit(model, x, y, batch_size=BATCH, **extra)
        seconds.append(round(time.perf_counter() - begin, 4))
    return seconds


def _samples(*shape: int) -> tuple[Any, Any]:
    import numpy as np

    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * BATCH, *shape)).astype("float32")
    return x, generator.integers(0, 10, STEPS * BATCH).astype("int32")


def _mlp() -> tuple[Any, Any, Any]:
    from keras import Input, Sequential, layers

    return Sequential([Input((784,)), layers.Dense(32, "relu"), layers.Dense(10)]), *_samples(784)


def _cnn() -> tuple[Any, Any, Any]:
    from keras import Input, Sequential, layers

    convolutions = [layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(), layers.Conv2D(32, 3)]
    return Sequential([Input((28, 28, 1)), *convolutions, layers.Flatten(), layers.Dense(10)]), *_samples(28, 28, 1)


def _lstm() -> tuple[Any, Any, Any]:
    from keras import Input, Sequential, layers

    return Sequential([Input((28, 28)), layers.LSTM(64), layers.Dense(10)]), *_samples(28, 28)


def _transformer() -> tuple[Any, Any, Any]:
    from keras import Input, Model, layers

    inputs = Input((32, 64))
    x = inputs
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(128, "gelu")(x)))
    return Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x))), *_samples(32, 64)


MODEL_BUILDERS = {"mlp": _mlp, "cnn": _cnn, "lstm": _lstm, "transformer": _transformer}


if __name__ == "__main__":
    raise SystemExit(main())
