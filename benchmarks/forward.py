"""Evaluation and prediction compared with the forward limit: a hand-written compiled forward pass on the same batches.

    python -m benchmarks.forward --backend jax [--models mlp,transformer] [--rounds 5] [--batches 100]

The contenders run alternately in one process; compiling is not counted. The limit reads the same arrays batch by batch,
has one batch in flight, and fetches what it returns: for `predict` the outputs, for `evaluate` sums of loss and hits at
the end. `model.predict` and `model.evaluate` are printed for comparison. The bar: 0.95 of the limit's rate.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

BAR = 0.95
BATCH = 256


def main() -> int:
    """Prints rates and ratios per model and one JSON line; returns 1 where a bar is not passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="jax", choices=["jax", "tensorflow", "torch"])
    parser.add_argument("--models", default="mlp,cnn,transformer", help="of benchmarks.short_fit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=100)
    arguments = parser.parse_args()
    os.environ |= {"KERAS_BACKEND": arguments.backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    passed, ratios = True, {}
    for name in arguments.models.split(","):
        ratios[name] = report(name, measure(name, arguments.rounds, arguments.batches), arguments.batches)
        passed &= min(ratios[name].values()) >= BAR
    print(json.dumps({"benchmark": "forward", "backend": arguments.backend, "batch": BATCH, "ratios": ratios}))
    return 0 if passed else 1


def measure(name: str, rounds: int, batches: int) -> dict[str, list[float]]:
    """Returns the seconds of each round by contender; the first round, which compiles, is not counted."""
    import keras
    import numpy as np

    import everstep
    from benchmarks.short_fit import MODEL_BUILDERS

    keras.utils.set_random_seed(0)
    model, x, y = MODEL_BUILDERS[name]()
    rows = np.arange(batches * BATCH) % len(x)
    x, y = x[rows], y[rows]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    limit = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}[keras.backend.backend()]
    forward, evaluation = limit(model, loss)
    trainer = _trainer(model, x, y)
    contenders: dict[str, Callable[[], Any]] = {
        "predict: limit": lambda: forward(x),
        "predict: ours": lambda: everstep.predict(model, x, batch_size=BATCH),
        "predict: keras": lambda: model.predict(x, batch_size=BATCH, verbose=0),
        "evaluate: limit": lambda: evaluation(x, y),
        "evaluate: ours": lambda: trainer.evaluate(-1),
        "evaluate: keras": lambda: model.evaluate(x, y, batch_size=BATCH, verbose=0),
    }
    seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(rounds + 1):
        for contender, run in contenders.items():
            begin = time.perf_counter()
            run()
            seconds[contender].append(time.perf_counter() - begin)
    trainer.close()
    return {contender: values[1:] for contender, values in seconds.items()}


def report(name: str, seconds: dict[str, list[float]], batches: int) -> dict[str, float]:
    """Prints the rates of one model; returns ours divided by the limit, for prediction and evaluation."""
    median = {contender: statistics.median(values) for contender, values in seconds.items()}
    for contender, value in median.items():
        what = contender.partition(":")[0]
        print(f"{name:12s} {contender:16s} {batches / value:9,.0f} batches/s   {median[f'{what}: limit'] / value:.2f}")
    return {what: round(median[f"{what}: limit"] / median[f"{what}: ours"], 3) for what in ("predict", "evaluate")}


def _trainer(model: Any, x: Any, y: Any) -> Any:
    """Returns a trainer that only evaluates a compiled model on arrays, as `fit` and the commands do."""
    import everstep
    from everstep.task.compiled import CompiledTask

    params = everstep.ExperimentConfig()
    data = {"global_batch_size": BATCH, "is_training": False, "drop_remainder": False}
    params.override({"task": {"validation_data": data}})
    return everstep.Trainer(
        params, CompiledTask(model, None, None, params.task), model, train=False, validation_dataset=(x, y)
    )


def _pieces(*arrays: Any) -> Any:
    for start in range(0, len(arrays[0]), BATCH):
        yield tuple(array[start : start + BATCH] for array in arrays)


def _in_flight(step: Callable[[Any], Any], fetch: Callable[[Any], Any], x: Any) -> Any:
    """Runs a step on each batch and fetches its result while the next one is computed."""
    import numpy as np

    results, running = [], None
    for (piece,) in _pieces(x):
        before, running = running, step(piece)
        if before is not None:
            results.append(fetch(before))
    return np.concatenate([*results, fetch(running)])


def _jax(model: Any, loss: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import jax
    import numpy as np

    # copies, since `model.predict` donates the arrays of the variables
    held = model.trainable_variables, model.non_trainable_variables
    state = tuple([jax.numpy.array(v.value, copy=True) for v in variables] for variables in held)
    forward = jax.jit(lambda state, x: model.stateless_call(*state, x, training=False)[0])

    @jax.jit
    def add(sums: Any, state: Any, x: Any, y: Any) -> Any:
        logits = model.stateless_call(*state, x, training=False)[0]
        return sums[0] + loss(y, logits) * len(x), sums[1] + (logits.argmax(-1) == y).sum()

    def evaluation(x: Any, y: Any) -> list[float]:
        sums: Any = (np.float32(0), np.int32(0))
        for piece in _pieces(x, y):
            sums = add(sums, state, *piece)
        return [float(value) for value in sums]

    return lambda x: _in_flight(lambda piece: forward(state, piece), np.asarray, x), evaluation


def _tensorflow(model: Any, loss: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import numpy as np
    import tensorflow as tf

    forward = tf.function(lambda x: model(x, training=False))

    @tf.function
    def add(total: Any, hits: Any, x: Any, y: Any) -> Any:
        logits = model(x, training=False)
        size, same = tf.cast(tf.shape(x)[0], "float32"), tf.cast(tf.equal(tf.argmax(logits, -1, tf.int32), y), "int32")
        return total + loss(y, logits) * size, hits + tf.reduce_sum(same)

    def evaluation(x: Any, y: Any) -> list[float]:
        sums = tf.constant(0.0), tf.constant(0)
        for piece in _pieces(x, y):
            sums = add(*sums, *map(tf.constant, piece))
        return [float(value) for value in sums]

    return lambda x: _in_flight(lambda piece: forward(tf.constant(piece)), np.asarray, x), evaluation


def _torch(model: Any, loss: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    import keras
    import torch

    def forward(x: Any) -> Any:
        with torch.no_grad():
            return model(keras.ops.convert_to_tensor(x), training=False)

    def evaluation(x: Any, y: Any) -> list[float]:
        sums: list[Any] = [0.0, 0]
        for batch, labels in _pieces(x, y):
            logits, target = forward(batch), keras.ops.convert_to_tensor(labels)
            with torch.no_grad():
                sums = [sums[0] + loss(target, logits) * len(batch), sums[1] + (logits.argmax(-1) == target).sum()]
        return [float(value) for value in sums]

    return lambda x: _in_flight(forward, keras.ops.convert_to_numpy, x), evaluation


if __name__ == "__main__":
    raise SystemExit(main())
