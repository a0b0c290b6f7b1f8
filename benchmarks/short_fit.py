"""What a short call of `everstep.fit` costs, whole, compared with `model.fit`: 50 steps, the first call and later ones.

Each contender runs in a fresh process, alternately: the first call of a process traces and compiles, the second
should not. Imports are not counted. The bar: at most 1.1 times the seconds of `model.fit`, for the first call and for
the second.

    python -m benchmarks short_fit --rounds 5                                    # all backends and models
    python -m benchmarks.short_fit --backend jax [--models mlp,cnn] [--rounds 5] [--validation]

With `--kept`, one call of about two seconds of training that is kept: `model_dir`, checkpoints, `model.keras`, beside
`model.fit`, which keeps nothing. The bar: at most 1.25 times its CPU seconds, which tell more than the clock on a busy
machine; what the start of the process takes is a note.

    python -m benchmarks.short_fit --backend jax --kept [--models seq2seq,fcn] [--rounds 3]
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.options import Options
from benchmarks.results import OURS, Case, show

BAR, KEPT_BAR = 1.1, 1.25
BATCH, STEPS = 32, 50
CALLS = ("first call", "second call")
CPU = "CPU s"
MODELS = ("mlp", "cnn", "lstm", "transformer")
FIT = "fit"
KEPT = {
    "jax": {"mlp": 40, "cnn": 2, "lstm": 3, "transformer": 1, "seq2seq": 3, "fcn": 4},
    "tensorflow": {"mlp": 12, "cnn": 3, "lstm": 2, "transformer": 1, "seq2seq": 2, "fcn": 2},
    "torch": {"mlp": 8, "cnn": 2, "lstm": 2, "transformer": 2, "seq2seq": 3, "fcn": 2},
}
"""How often the samples of each model that is kept are repeated: `model.fit` takes about two seconds on two cores."""

KEPT_EPOCHS = 5


def main() -> int:
    """Runs both contenders for each model, prints seconds and ratios, then JSON; 1 where a bar is not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="jax", choices=["jax", "tensorflow", "torch"])
    parser.add_argument(
        "--models", help=f"of {', '.join(MODEL_BUILDERS)} (default: all; without --kept the first four)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes per contender and model (default 3)")
    parser.add_argument("--validation", action="store_true", help="evaluate at the end of the epoch, too")
    parser.add_argument("--kept", action="store_true", help="a call that is kept, of about two seconds of training")
    parser.add_argument("--contender", choices=[OURS, FIT], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        made = call_kept if arguments.kept else call
        print(json.dumps(made(arguments.contender, arguments.models, arguments.validation)))
        return 0
    cases, names = (
        [],
        arguments.models.split(",") if arguments.models else list(MODEL_BUILDERS if arguments.kept else MODELS),
    )
    for model in names:
        measured = measure_kept if arguments.kept else measure
        for case in measured(arguments.backend, model, arguments.rounds, arguments.validation):
            show(case)
            cases.append(case)
    print(json.dumps({"cases": [dataclasses.asdict(case) for case in cases]}))
    if arguments.kept:
        return 0 if all(case.ratio(FIT) >= 1 / KEPT_BAR for case in cases if case.unit == CPU) else 1
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
    seconds = _in_turns(backend, model, rounds, ["--validation"] if validation else [])
    return [
        Case(
            case_name(model, backend, which),
            "s",
            {contender: [calls[number] for calls in processes] for contender, processes in seconds.items()},
        )
        for number, which in enumerate(CALLS)
    ]


def measure_kept(backend: str, model: str, rounds: int, validation: bool = False) -> list[Case]:
    """Returns the seconds and the CPU seconds of a call that is kept."""
    figures = _in_turns(backend, model, rounds, ["--kept", *(["--validation"] if validation else [])])
    starts = {who: [round(values[2], 2) for values in processes] for who, processes in figures.items()}
    return [
        Case(
            case_name(model, backend, "kept"),
            unit,
            {contender: [values[number] for values in processes] for contender, processes in figures.items()},
            notes={"CPU seconds before the call": starts} if unit == CPU else {},
        )
        for number, unit in enumerate(("s", CPU))
    ]


def _in_turns(backend: str, model: str, rounds: int, options: list[str]) -> dict[str, list[list[float]]]:
    """Returns what each contender has printed in each round, in a process of its own."""
    printed: dict[str, list[list[float]]] = {FIT: [], OURS: []}
    for _ in range(rounds):
        for contender in printed:
            command = [sys.executable, "-m", "benchmarks.short_fit", "--models", model, "--contender", contender]
            environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
            result = subprocess.run(
                [*command, *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
                env=environment,
            )
            printed[contender].append(json.loads(result.stdout.splitlines()[-1]))
    return printed


# -- one contender, in a process of its own ----------------------------------------------------------------------------


def call(contender: str, name: str, validation: bool) -> list[float]:
    """Returns the seconds of each of several calls with one model."""
    fit, model, x, y = _prepared(contender, name)
    extra = {"validation_data": (x[: 10 * BATCH], y[: 10 * BATCH])} if validation else {}
    seconds = []
    for _ in CALLS:
        begin = time.perf_counter()
        fit(model, x, y, batch_size=BATCH, **extra)
        seconds.append(round(time.perf_counter() - begin, 4))
    return seconds


def call_kept(contender: str, name: str, validation: bool) -> list[float]:
    """Returns seconds and CPU seconds of a call that is kept, and the CPU seconds of the process before it."""
    import numpy as np

    fit, model, x, y = _prepared(contender, name)
    times = KEPT[os.environ["KERAS_BACKEND"]][name]
    x = [np.concatenate([array] * times) for array in x] if isinstance(x, list) else np.concatenate([x] * times)
    y = np.concatenate([y] * times)
    extra: dict[str, Any] = {"validation_split": 0.2} if validation else {}
    with tempfile.TemporaryDirectory() as folder:
        extra |= {"model_dir": f"{folder}/run"} if contender == OURS else {}
        begin, start = time.perf_counter(), time.process_time()
        fit(model, x, y, batch_size=BATCH, epochs=KEPT_EPOCHS, **extra)
        return [round(time.perf_counter() - begin, 4), round(time.process_time() - start, 4), start]


def _prepared(contender: str, name: str) -> tuple[Any, Any, Any, Any]:
    """Returns the contender's `fit`, a compiled model, and its data."""
    if contender == OURS:
        import everstep  # before Keras, as in a program whose imports are sorted
    import keras

    fit = everstep.fit if contender == OURS else keras.Model.fit
    keras.utils.set_random_seed(0)
    model, x, y = MODEL_BUILDERS[name]()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return fit, model, x, y


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


def _seq2seq() -> tuple[Any, Any, Any]:
    import numpy as np
    from keras import Input, Model, layers

    letters, generator = 50, np.random.default_rng(0)
    encoded, decoded = Input((None, letters)), Input((None, letters))
    _, *states = layers.LSTM(64, return_state=True)(encoded)
    x = layers.LSTM(64, return_sequences=True)(decoded, initial_state=states)
    texts = [np.eye(letters, dtype="float32")[generator.integers(0, letters, (20 * BATCH, n))] for n in (14, 20)]
    return Model([encoded, decoded], layers.Dense(letters)(x)), texts, generator.integers(0, letters, (20 * BATCH, 20))


def _fcn() -> tuple[Any, Any, Any]:
    from keras import Input, Sequential, layers

    blocks = [
        layer
        for _ in range(3)
        for layer in (layers.Conv1D(64, 3, padding="same"), layers.BatchNormalization(), layers.ReLU())
    ]
    x, y = _samples(100, 1)
    model = Sequential([Input((100, 1)), *blocks, layers.GlobalAveragePooling1D(), layers.Dense(10)])
    return model, x[: 20 * BATCH], y[: 20 * BATCH]


MODEL_BUILDERS = {
    "mlp": _mlp,
    "cnn": _cnn,
    "lstm": _lstm,
    "transformer": _transformer,
    "seq2seq": _seq2seq,
    "fcn": _fcn,
}


if __name__ == "__main__":
    raise SystemExit(main())
