"""Steps on PyTorch as CUDA graphs: the same bits as eagerly, and how fast they are.

    python -m benchmarks.torch_steps [--rounds 5] [--only bits|speed]

The bits: for several models, the state after 50 steps is compared between eager and recorded steps, split into calls in
three ways, resumed in the middle, and with the logs of an evaluation. Models that cannot be recorded run eagerly and
say why.

The speed: MLP 784-512-10 at batch 128, in turn with `model.fit`, with ours eagerly and recorded (console, events and
history.csv on, a window of 100 steps), with plain PyTorch, with its model and loss under
`torch.compile(mode="reduce-overhead")`, and with a whole plain PyTorch step in a CUDA graph, the upper limit. The bars
on a GPU: 0.8 of the compiled one, and 4 times `model.fit`.

Without a GPU the same runs with few steps, and a list of operations in place of CUDA graphs, where the tests are
importable; then only the bits count.
"""

import argparse
import functools
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from everstep.engine import backend

backend.select("torch")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from keras import layers, ops  # noqa: E402

from everstep.checkpoint.digests import digest  # noqa: E402
from everstep.data.arrays import ArrayStream  # noqa: E402
from everstep.engine.backend import create_engine  # noqa: E402
from everstep.experiment_config import ExperimentConfig  # noqa: E402
from everstep.loop.trainer import Trainer  # noqa: E402
from everstep.task.classification import ClassificationTask  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
BATCH, BLOCK = 128, 100
WARM, STEPS = (400, 2000) if GPU else (100, 300)
LOSS = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)

# -- bits -------------------------------------------------------------------------------------------------------------

SPLITS = [(50,), (7, 43), (1,) * 50]


def mlp() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), layers.Dense(128, "relu"), layers.Dropout(0.3), layers.Dense(10)])


def cnn() -> keras.Model:
    stack = [layers.Reshape((8, 8, 1)), layers.Conv2D(16, 3), layers.BatchNormalization(), layers.ReLU()]
    stack += [layers.SpatialDropout2D(0.2), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *stack])


def lstm() -> keras.Model:
    return keras.Sequential([keras.Input((64,)), layers.Reshape((8, 8)), layers.LSTM(32), layers.Dense(10)])


def lstm_with_dropout() -> keras.Model:
    stack = [layers.Reshape((8, 8)), layers.LSTM(32, dropout=0.1, recurrent_dropout=0.1), layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *stack])


def masked_gru() -> keras.Model:
    stack = [layers.Reshape((8, 8)), layers.Masking(), layers.GRU(32), layers.Dense(10)]
    return keras.Sequential([keras.Input((64,)), *stack])


def transformer() -> keras.Model:
    inputs = keras.Input((64,))
    x = layers.Dense(32)(layers.Reshape((16, 4))(inputs))
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(layers.MultiHeadAttention(4, 8)(x, x)))
        x = layers.BatchNormalization()(x + layers.Dropout(0.1)(layers.Dense(32)(layers.Dense(64, "gelu")(x))))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def embedding() -> keras.Model:
    stack = [layers.Lambda(lambda x: ops.cast(ops.abs(x) * 20, "int32") % 50), layers.Embedding(50, 16)]
    return keras.Sequential([keras.Input((64,)), *stack, layers.GlobalAveragePooling1D(), layers.Dense(10)])


def warmed_up() -> keras.Optimizer:
    return keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(1e-4, 100, warmup_target=1e-3, warmup_steps=9))


CASES: dict[str, tuple[Callable[[], keras.Model], Callable[[], keras.Optimizer]]] = {
    "mlp": (mlp, keras.optimizers.Adam),
    "mlp, sgd": (mlp, lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)),
    "mlp, sgd without momentum": (mlp, lambda: keras.optimizers.SGD(0.1)),
    "mlp, clipped": (mlp, lambda: keras.optimizers.Adam(global_clipnorm=0.5)),
    "cnn": (cnn, keras.optimizers.Adam),
    "lstm": (lstm, keras.optimizers.Adam),
    "lstm with dropout": (lstm_with_dropout, keras.optimizers.RMSprop),
    "gru with a mask": (masked_gru, keras.optimizers.Adam),
    "transformer": (transformer, warmed_up),
    "embedding": (embedding, keras.optimizers.Adam),
}


class Small(ClassificationTask):
    """Classifies rows of 64 numbers."""

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return None


class Reading(Small):
    """Needs the loss on the host in every step, so that it cannot be recorded."""

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        logs = super().train_step(inputs, model, optimizer, metrics)
        self.last = logs[self.loss].item()
        return logs


@functools.cache
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns 20 batches of 32, and a short one of 9."""
    generator = np.random.default_rng(0)
    return generator.normal(size=(649, 64)).astype("float32"), generator.integers(0, 10, 649).astype("int32")


def make_engine(way: str, *args: Any) -> Any:
    if way == "recorded" and not GPU:
        from tests.engine.operation_list import recording_engine

        return recording_engine(*args)
    return create_engine(*args, cuda_graph=way == "recorded")


def built(way: str, case: str, task: ClassificationTask, seed: int = 0) -> tuple[Any, Any]:
    """Returns an engine and its feed."""
    backend.prepare(seed)
    model, optimizer = (make() for make in CASES[case])
    engine, stream = make_engine(way, task, model, optimizer), ArrayStream(rows(), 32, repeat=True)
    engine.build(stream.peek(), stream.peek())
    while engine.call_length.measuring:
        engine.call_length.record(1e-4)
    return engine, engine.feed(stream)


def run_case(way: str, case: str, task_type: Callable[[], ClassificationTask] = Small) -> dict[str, Any]:
    """Returns what the steps of a case ended with, in one way of running them."""
    engine, feed = built(way, case, task_type())
    start, digests = engine.state(), []
    for split in SPLITS:
        engine.load(start)
        feed.restore({"epoch": 0, "batch": 0})
        for length in split:
            engine.run(feed, length)
        digests.append(digest(engine.state()))
    engine.load(start)
    feed.restore({"epoch": 0, "batch": 0})
    engine.run(feed, 20)
    state, position = engine.state(), feed.state()
    validation = engine.feed(ArrayStream(rows(), 32))
    logs = engine.evaluate(validation)[0]
    validation.close()
    feed.close()
    second, feed = built(way, case, task_type(), seed=1)
    second.load(state)
    feed.restore(position)
    second.run(feed, 30)
    feed.close()
    ended = {"digests": [*digests, digest(second.state())], "logs": logs}
    return {**ended, "described": engine.describe(), "recorded": engine.compilations}


def check_bits() -> dict[str, Any]:
    """Compares eager and recorded steps of every case; prints a line for each."""
    results = {}
    for case in CASES:
        eager, recorded = run_case("eager", case), run_case("recorded", case)
        same = len({*eager["digests"], *recorded["digests"]}) == 1 and eager["logs"] == recorded["logs"]
        described = recorded["described"]
        results[case] = {"same": same, "loop": described["loop"], "reason": described.get("reason", "")}
        print(f"{case:28s} {'same bits' if same else 'OTHER BITS'}   {described['loop']} {described.get('reason', '')}")
        if not same:
            print("   eager   ", [value[:8] for value in eager["digests"]], eager["logs"])
            print("   recorded", [value[:8] for value in recorded["digests"]], recorded["logs"])
    ended = [run_case(way, "mlp", Reading) for way in ("eager", "recorded")]
    described = ended[1]["described"]
    same = len({value for run in ended for value in run["digests"]}) == 1 and described["loop"] == "eager"
    results["not recordable"] = {"same": same, "loop": described["loop"], "reason": described.get("reason", "")}
    print(
        f"{'not recordable':28s} {'same bits' if same else 'WRONG'}   {described['loop']} {described.get('reason', '')}"
    )
    return results


# -- speed ------------------------------------------------------------------------------------------------------------


@functools.cache
def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.random((60_000, 784), "float32"), generator.integers(0, 10, 60_000).astype("int32")


def build_model() -> keras.Model:
    return keras.Sequential([keras.Input((784,)), layers.Dense(512, "relu"), layers.Dense(10)])


def finish() -> None:
    if GPU:
        torch.cuda.synchronize()


def fit() -> float:
    model, (x, y) = build_model(), data()
    model.compile(keras.optimizers.Adam(1e-3), LOSS(), metrics=["accuracy"])
    rows = len(x) if GPU else BATCH * 200
    model.fit(x[: BATCH * 50], y[: BATCH * 50], batch_size=BATCH, verbose=0)
    finish()
    begin = time.perf_counter()
    model.fit(x[:rows], y[:rows], batch_size=BATCH, verbose=0)
    finish()
    return (rows // BATCH) / (time.perf_counter() - begin)


class Large(ClassificationTask):
    """The same model as a task."""

    def build_model(self) -> keras.Model:
        return build_model()

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        return data()


class Timed(Trainer):
    """Waits for the device at the first and at the last step that count, and records their times."""

    marks: dict[int, float] = {}

    def train(self, num_steps: int, **call: Any) -> Any:
        logs = super().train(num_steps, **call)
        if self.global_step in (WARM, STEPS):
            len(logs)
            self.marks[self.global_step] = time.perf_counter()
        return logs


def ours(cuda_graph: bool) -> float:
    params, task = ExperimentConfig(), Large()
    params.override({"task": {"train_data": {"global_batch_size": BATCH, "is_training": True}}})
    params.override({"trainer": {"train_steps": STEPS, "steps_per_loop": BLOCK, "checkpoint_interval": 0}})
    params.override({"runtime": {"cuda_graph": cuda_graph}})
    try:
        from everstep.experiment import create_trainer, run_experiment

        trainer = create_trainer(params, task, train=True, evaluate=False, trainer_cls=Timed)
        with tempfile.TemporaryDirectory() as directory:
            run_experiment(task, params, directory, "train", trainer=trainer, export=False)
    except ModuleNotFoundError as error:  # a package of the whole run is missing: the loop alone
        print(f"without run_experiment: {error}")
        bare_loop(params, task)
    return (STEPS - WARM) / (Timed.marks[STEPS] - Timed.marks[WARM])


def bare_loop(params: ExperimentConfig, task: ClassificationTask) -> None:
    trainer = Timed(params, task, task.build_model(), keras.optimizers.Adam(1e-3), evaluate=False)
    former = None
    while trainer.global_step < STEPS:
        logs = trainer.train(BLOCK)
        if former is not None:
            len(former)  # read one window later, as the loop does
        former = logs
    trainer.close()


def blocks() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields blocks of 100 batches on the device."""
    x, y = data()
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(len(x))[: len(x) // (BATCH * BLOCK) * BATCH * BLOCK]
        for index in order.reshape(-1, BLOCK, BATCH):
            yield torch.as_tensor(x[index]).to(DEVICE), torch.as_tensor(y[index]).long().to(DEVICE)


def plain_torch(make_step: Callable[..., Callable[[Any, Any], None]]) -> float:
    """Returns the rate of a plain PyTorch step, with the mean loss and accuracy read every 100 steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(DEVICE)
    sums = torch.zeros(2, device=DEVICE)
    step, source = make_step(model, sums), blocks()

    def run(steps: int) -> None:
        for _ in range(steps // BLOCK):
            for x, y in zip(*next(source), strict=True):
                step(x, y)
            sums.cpu()
            sums.zero_()

    run(WARM)
    finish()
    begin = time.perf_counter()
    run(STEPS - WARM)
    finish()
    return (STEPS - WARM) / (time.perf_counter() - begin)


def loss_and_accuracy(model: Any, x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(x)
    return torch.nn.functional.cross_entropy(logits, y), (logits.argmax(-1) == y).float().mean()


def eager_step(model: Any, sums: torch.Tensor) -> Callable[[Any, Any], None]:
    return _step(model, sums, loss_and_accuracy)


def compiled_step(model: Any, sums: torch.Tensor) -> Callable[[Any, Any], None]:
    return _step(model, sums, torch.compile(loss_and_accuracy, mode="reduce-overhead"))


def _step(model: Any, sums: torch.Tensor, forward: Callable[..., Any]) -> Callable[[Any, Any], None]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def step(x: Any, y: Any) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss, accuracy = forward(model, x, y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            sums.add_(torch.stack([loss.detach(), accuracy]))

    return step


def graph_step(model: Any, sums: torch.Tensor) -> Callable[[Any, Any], None]:
    """The whole step as a CUDA graph, written by hand; only on a GPU."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, capturable=True)
    x, y = torch.zeros(BATCH, 784, device=DEVICE), torch.zeros(BATCH, dtype=torch.long, device=DEVICE)

    def one() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss, accuracy = loss_and_accuracy(model, x, y)
        loss.backward()
        optimizer.step()
        sums.add_(torch.stack([loss.detach(), accuracy.detach()]))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            one()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()

    def step(new_x: Any, new_y: Any) -> None:
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()

    return step


def measure(rounds: int) -> dict[str, list[float]]:
    """Runs all contenders in turn, and prints their rates in steps per second."""
    contenders: dict[str, Callable[[], float]] = {
        "fit": fit,
        "ours, eager": lambda: ours(False),
        "ours": lambda: ours(True),
        "torch": lambda: plain_torch(eager_step),
        "torch, compiled": lambda: plain_torch(compiled_step),
    }
    if GPU:
        contenders["torch, one graph"] = lambda: plain_torch(graph_step)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            try:
                rates[name].append(run())
            except Exception as error:  # torch.compile may have no compiler here
                print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
            keras.utils.clear_session()
    for name, values in rates.items():
        if values:
            shown = " ".join(f"{value:,.0f}" for value in values)
            print(f"{name:18s} {statistics.median(values):8,.0f} steps/s   ({shown})")
    return rates


def ratios(rates: dict[str, list[float]]) -> dict[str, float]:
    """Prints and returns how fast ours is, compared with each other contender."""
    median = {name: statistics.median(values) for name, values in rates.items() if values}
    if "ours" not in median:
        return {}
    found = {f"ours / {name}": median["ours"] / median[name] for name in median if name != "ours"}
    for name, ratio in found.items():
        bar = {"ours / fit": 4.0, "ours / torch, compiled": 0.8}.get(name)
        judged = "" if bar is None or not GPU else f"   bar {bar}: {'passed' if ratio >= bar else 'NOT PASSED'}"
        print(f"{name:28s} {ratio:6.2f}{judged}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_steps", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each contender runs (default 5)")
    parser.add_argument("--only", choices=["bits", "speed"], help="one of the two parts")
    arguments = parser.parse_args()
    backend.prepare(0)
    logging.basicConfig(level=logging.WARNING)
    device = torch.cuda.get_device_name() if GPU else "cpu"
    result: dict[str, Any] = {"torch": torch.__version__, "keras": keras.__version__, "device": device}
    if arguments.only != "speed":
        result["bits"] = check_bits()
    if arguments.only != "bits":
        result["rates"] = measure(arguments.rounds)
        result["ratios"] = ratios(result["rates"])
    print(json.dumps(result))
    return 0 if all(case["same"] for case in result.get("bits", {}).values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
