"""Data on the device and on the host, compared with hand-written loops: `python -m benchmarks.device_data`.

MLP 784-512-10 at batch 128 on random data in the shape of MNIST. All contenders run alternately in one process; ratios
of the medians count, not absolute rates, and compilation is not counted for any of them:

- `hand device`: the data lives on the device, and a scan over an epoch gathers its batches (JAX only)
- `hand host`: a thread gathers blocks on the host and places them ahead of a scan (JAX only)
- `ours device`, `ours host`: `run_experiment` with `cache: device` and `cache: host`, everything on: console,
  TensorBoard events, history.csv, a logging window of an epoch
- `everstep.fit`, `fit`, `fit 100`: the model compiled by Keras, the last one with `steps_per_execution=100`

On a CPU, try it in small: `--rows 4096 --hidden 32 --batch 32 --steps 2000 --rounds 1`.
"""

import argparse
import functools
import json
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from everstep.engine import backend


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_data", description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="jax")
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=40_000, help="of the loops, of which the first quarter warms up")
    parser.add_argument("--fit-steps", type=int, default=4_000, help="of Keras's fit, likewise")
    parser.add_argument("--block", type=int, default=117, help="steps in a call of `hand host`")
    parser.add_argument("--window", type=int, default=0, help="steps_per_loop of ours; 0 for an epoch")
    parser.add_argument("--dtype", choices=["float32", "uint8"], default="float32", help="of the images")
    parser.add_argument(
        "--nondeterministic", action="store_true", help="allow such operations, for all but everstep.fit"
    )
    parser.add_argument("--only", nargs="+", help="names of contenders, such as 'ours device'")
    return parser.parse_args()


arguments = _arguments() if __name__ == "__main__" else argparse.Namespace(backend=None, nondeterministic=False)
if arguments.nondeterministic:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=false"
backend.select(arguments.backend)

import keras  # noqa: E402
import numpy as np  # noqa: E402

import everstep  # noqa: E402
from everstep.experiment import create_trainer, run_experiment  # noqa: E402
from everstep.experiment_config import ExperimentConfig  # noqa: E402
from everstep.loop.trainer import Trainer  # noqa: E402
from everstep.task.classification import ClassificationTask  # noqa: E402

LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (arguments.rows, 784)).astype(arguments.dtype)
    y = random.integers(0, 10, arguments.rows).astype("int32")
    return (x if arguments.dtype == "uint8" else x / np.float32(255)), y


def epoch_steps() -> int:
    return int(arguments.rows // arguments.batch)


def build_model() -> keras.Model:
    layers = keras.layers
    first = [layers.Rescaling(1 / 255)] if arguments.dtype == "uint8" else []
    return keras.Sequential(
        [keras.Input((784,), dtype=arguments.dtype), *first, layers.Dense(arguments.hidden, "relu"), layers.Dense(10)]
    )


# -- ours --------------------------------------------------------------------------------------------------------------


class Task(ClassificationTask):
    """The model as a task."""

    def build_model(self) -> keras.Model:
        return build_model()

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return data()


class Timed(Trainer):
    """A trainer that waits for the device at the first and the last step that count, and records their times."""

    marks: dict[int, float]
    counted: tuple[int, int]

    def train(self, num_steps: int, **call: Any) -> Any:
        logs = super().train(num_steps, **call)
        if self.global_step in self.counted:
            len(logs)
            self.marks[self.global_step] = time.perf_counter()
        return logs


def ours(cache: str) -> float:
    window = arguments.window or epoch_steps()
    first, last = (max(1, steps // window) * window for steps in (arguments.steps // 4, arguments.steps))
    params = ExperimentConfig()
    section = {"global_batch_size": arguments.batch, "is_training": True, "cache": cache}
    params.override({"task": {"train_data": section}})
    params.override({"trainer": {"train_steps": last, "steps_per_loop": window, "checkpoint_interval": 0}})
    params.override({"runtime": {"deterministic": not arguments.nondeterministic}})
    task = Task()
    trainer = create_trainer(params, task, train=True, evaluate=False, trainer_cls=Timed)
    trainer.marks, trainer.counted = {}, (first, last)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as directory:
        run_experiment(task, params, directory, "train", trainer=trainer, export=False)
    lengths[f"ours {cache}"] = trainer.engine.call_length.lengths
    return (last - first) / (trainer.marks[last] - trainer.marks[first])  # type: ignore[attr-defined]


lengths: dict[str, list[int]] = {}  # of the calls of ours


# -- fit ---------------------------------------------------------------------------------------------------------------


def fit(train: Callable[..., Any], steps: int, per_execution: int = 1) -> float:
    """Returns the rate of the epochs by which a call is longer than a short one; the first call compiles."""
    model, epochs = build_model(), max(4, steps // epoch_steps())
    model.compile(keras.optimizers.Adam(1e-3), LOSS(), metrics=["accuracy"], steps_per_execution=per_execution)
    used = epoch_steps() * arguments.batch  # full batches only, as in the other contenders
    x, y = data()

    def seconds(epochs: int) -> float:
        begin = time.perf_counter()
        train(model, x[:used], y[:used], batch_size=arguments.batch, epochs=epochs, verbose=0)
        return time.perf_counter() - begin

    short = epochs // 4
    seconds(short)
    return (epochs - short) * epoch_steps() / (seconds(epochs) - seconds(short))


# -- by hand, on JAX ---------------------------------------------------------------------------------------------------


def one_step() -> tuple[Callable[[Any, Any], Any], Any]:
    """Returns the step of a hand-written loop, and its initial state."""
    import jax

    model, optimizer, loss = build_model(), keras.optimizers.Adam(1e-3), LOSS()
    optimizer.build(model.trainable_variables)

    def loss_fn(trainable: Any, rest: Any, x: Any, y: Any) -> Any:
        logits, rest = model.stateless_call(trainable, rest, x, training=True)
        return loss(y, logits), (logits, rest)

    def one(state: Any, batch: Any) -> Any:
        trainable, rest, slots = state
        (value, (logits, rest)), grads = jax.value_and_grad(loss_fn, has_aux=True)(trainable, rest, *batch)
        trainable, slots = optimizer.stateless_apply(slots, grads, trainable)
        return (trainable, rest, slots), (value, (logits.argmax(-1) == batch[1]).mean())

    held = [model.trainable_variables, model.non_trainable_variables, optimizer.variables]
    return one, tuple([jax.numpy.array(v.value, copy=True) for v in group] for group in held)


def timed_calls(call: Callable[[Any, Any], Any], state: Any, blocks: Iterator[Any], length: int) -> float:
    """Runs calls, reads the logs of each while the next one runs, and returns the rate after a warm-up."""
    import jax

    done, begun, begin, before = 0, 0, 0.0, None
    while done < arguments.steps:
        if not begun and done >= arguments.steps // 4:
            jax.block_until_ready(state)
            begun, begin = done, time.perf_counter()
        state, logs = call(state, next(blocks))
        if before is not None:
            [float(np.mean(values)) for values in before]
        before, done = logs, done + length
    jax.block_until_ready(state)
    return (done - begun) / (time.perf_counter() - begin)


def orders() -> Iterator[np.ndarray]:
    """Yields the row numbers of epoch after epoch, one row per step."""
    random, used = np.random.default_rng(0), epoch_steps() * arguments.batch
    while True:
        yield random.permutation(arguments.rows)[:used].reshape(-1, arguments.batch).astype("int32")


def hand_device() -> float:
    import jax

    one, state = one_step()
    x, y = jax.device_put(data())

    def many(state: Any, x: Any, y: Any, rows: Any) -> Any:
        def gathered(state: Any, row: Any) -> Any:
            return one(state, (jax.numpy.take(x, row, axis=0), jax.numpy.take(y, row, axis=0)))

        return jax.lax.scan(gathered, state, rows)

    compiled = jax.jit(many, donate_argnums=0)
    blocks = ahead(jax.device_put(rows) for rows in orders())
    return timed_calls(lambda state, rows: compiled(state, x, y, rows), state, blocks, epoch_steps())


def hand_host() -> float:
    import jax

    one, state = one_step()
    x, y = data()
    compiled = jax.jit(lambda state, block: jax.lax.scan(one, state, block), donate_argnums=0)
    length = min(arguments.block, epoch_steps())

    def blocks() -> Iterator[Any]:
        for order in orders():
            for begin in range(0, len(order) - length + 1, length):
                rows = order[begin : begin + length]
                yield jax.device_put((np.take(x, rows, axis=0), np.take(y, rows, axis=0)))

    return timed_calls(compiled, state, ahead(blocks()), length)


def ahead(source: Iterator[Any]) -> Iterator[Any]:
    """Yields what a thread reads three items ahead."""
    items: queue.Queue[Any] = queue.Queue(maxsize=3)
    ended = threading.Event()

    def read() -> None:
        for item in source:
            while not ended.is_set():
                try:
                    items.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if ended.is_set():
                return

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            yield items.get()
    finally:
        ended.set()


# ----------------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Runs the contenders alternately, and prints medians, spreads, ratios, and one line of JSON."""
    backend.prepare(0, deterministic=not arguments.nondeterministic)
    keras_fit = keras.Model.fit
    contenders: dict[str, Callable[[], float]] = {
        "hand device": hand_device,
        "ours device": lambda: ours("device"),
        "hand host": hand_host,
        "ours host": lambda: ours("host"),
        "everstep.fit": lambda: fit(everstep.fit, arguments.steps),
        "fit": lambda: fit(keras_fit, arguments.fit_steps),
        "fit 100": lambda: fit(keras_fit, arguments.fit_steps, 100),
    }
    if keras.backend.backend() != "jax":
        contenders = {name: run for name, run in contenders.items() if not name.startswith("hand")}
    contenders = {name: run for name, run in contenders.items() if name in (arguments.only or contenders)}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, run in contenders.items():
            rates[name].append(run())
            keras.utils.clear_session()
    median = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        print(f"{name:13s} {median[name]:9,.0f} steps/s   ({spread})")
    pairs = (("ours device", "hand device"), ("ours host", "hand host"), ("everstep.fit", "hand device"))
    pairs += (("everstep.fit", "fit"), ("ours device", "fit 100"))
    ratios = {f"{one} / {other}": median[one] / median[other] for one, other in pairs if {one, other} <= median.keys()}
    for name, ratio in ratios.items():
        print(f"{name:28s} {ratio:.3f}")
    print(json.dumps({"settings": vars(arguments), "rates": rates, "ratios": ratios, "lengths": lengths}))


if __name__ == "__main__":
    main()
