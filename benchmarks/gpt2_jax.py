"""The contenders on JAX: Keras's `fit`, loops by hand, `run_experiment`, and trainers with other settings."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

import everstep
from everstep.engine.call_length import CallLength
from everstep.engine.mixed_precision import precision
from everstep.experiment import create_trainer, run_experiment
from everstep.loop.trainer import Trainer
from everstep.recipes.gpt2_task import GPT2Task, generate_tokens
from everstep.task.classification import LanguageModelTask
from everstep.task.optim.building import build as build_optimizer

SEQUENCES = 16  # batches of data


class WithMetrics(GPT2Task):
    """Computes accuracy and perplexity in training, too."""

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        return LanguageModelTask.build_metrics(self, training)


def params_of(shape: Any, overrides: dict[str, Any]) -> Any:
    """Returns the shipped experiment at the sizes of a shape, with a variant's settings."""
    params = everstep.get_exp_config("text/gpt2_124m")
    sizes = {name: getattr(shape, name) for name in ("vocabulary", "context", "layers", "heads", "width")}
    data = {"global_batch_size": shape.batch}
    task = {"model": sizes, "train_data": data, "generated_sequences": SEQUENCES * shape.batch}
    runtime = {"mixed_precision_dtype": None} if shape.small else {}
    params.override({"task": task, "runtime": runtime})
    params.override({"trainer": {"checkpoint_interval": 0}})
    for key, value in overrides.items():
        if "." in key:
            params.override(nested(key, value))
    return params


def nested(key: str, value: Any) -> dict[str, Any]:
    """Returns `{"a": {"b": value}}` for `a.b`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def model_and_optimizer(shape: Any) -> tuple[keras.Model, keras.Optimizer, np.ndarray]:
    """Returns what `fit` and the loops by hand train: the model and optimizer of the experiment, and tokens."""
    params = params_of(shape, {})
    keras.utils.set_random_seed(0)
    with precision(params.runtime.mixed_precision_dtype):
        model = everstep.get_task(params.task).build_model()
    optimizer = build_optimizer(params.trainer.with_learning_rate_length().optimizer_config)
    rows = generate_tokens(SEQUENCES * shape.batch, shape.context, shape.vocabulary, seed=0)
    return model, optimizer, rows


class Fit:
    """Keras's `fit`."""

    def __init__(self, shape: Any) -> None:
        self._shape = shape
        self._model, optimizer, self._rows = model_and_optimizer(shape)
        self._model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self.loss = 0.0

    def run(self, steps: int) -> float:
        """Returns the seconds per step of one epoch of so many steps."""
        rows = np.resize(self._rows, (steps * self._shape.batch, self._rows.shape[1]))
        begin = time.perf_counter()
        history = self._model.fit(rows[:, :-1], rows[:, 1:], batch_size=self._shape.batch, shuffle=False, verbose=0)
        self.loss = history.history["loss"][-1]
        return (time.perf_counter() - begin) / steps


class Hand:
    """A loop by hand over a compiled step, or over a scan of several steps."""

    def __init__(self, shape: Any, length: int) -> None:
        self._shape, self._length = shape, min(length, shape.steps)
        model, optimizer, self._rows = model_and_optimizer(shape)
        optimizer.build(model.trainable_variables)
        entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.loss = 0.0

        def loss_fn(trainable: Any, rest: Any, rows: Any) -> Any:
            logits, rest = model.stateless_call(trainable, rest, rows[:, :-1], training=True)
            return entropy(rows[:, 1:], logits), rest

        def one(state: Any, rows: Any) -> Any:
            trainable, rest, slots = state
            (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(trainable, rest, rows)
            trainable, slots = optimizer.stateless_apply(slots, grads, trainable)
            return (trainable, rest, slots), loss

        def many(state: Any, rows: Any) -> Any:
            return one(state, rows[0]) if self._length == 1 else jax.lax.scan(one, state, rows)

        self._many = jax.jit(many, donate_argnums=0)
        held = [model.trainable_variables, model.non_trainable_variables, optimizer.variables]
        self._state = tuple([jax.numpy.array(v.value, copy=True) for v in group] for group in held)

    def run(self, steps: int) -> float:
        """Returns the seconds per step; at least one call."""
        calls = max(1, steps // self._length)
        blocks = np.resize(self._rows, (calls, self._length, self._shape.batch, self._rows.shape[1]))
        jax.block_until_ready(self._state)
        begin = time.perf_counter()
        loss: Any = 0.0
        for block in blocks:
            self._state, loss = self._many(self._state, block)
        jax.block_until_ready(self._state)
        seconds = time.perf_counter() - begin
        self.loss = float(np.mean(loss))
        return seconds / (calls * self._length)


def ours(
    shape: Any, rounds: int, settings: dict[str, Any], others: Callable[[], None]
) -> tuple[list[float], dict[str, float]]:
    """Runs the experiment with everything on; between two rounds of its windows the others run.

    Returns:
      The seconds per step of each round, and the memory of the compiled step.
    """
    window = min(10, shape.steps)
    per_round = max(1, shape.steps // window)
    warm = 3 if shape.small else 4  # windows: single steps, the first long call, and one more
    times: list[float] = []
    memory: dict[str, float] = {}

    class Timed(Trainer):
        """Waits for the device where a round begins and ends, not in between."""

        windows, began = 0, 0.0

        def train(self, num_steps: int, **call: Any) -> Any:
            logs = super().train(num_steps, **call)
            Timed.windows += 1
            counted = Timed.windows - warm
            if counted >= 0 and counted % per_round == 0:
                len(logs)
                if counted:
                    times.append((time.perf_counter() - Timed.began) / (per_round * window))
                else:
                    memory.update(memory_of(self))
                if counted < per_round * rounds:
                    others()
                Timed.began = time.perf_counter()
            return logs

    params = params_of(shape, settings)
    steps = (warm + per_round * rounds) * window
    params.override({"trainer": {"train_steps": steps, "steps_per_loop": window}})
    task = everstep.get_task(params.task)
    trainer = create_trainer(params, task, train=True, evaluate=False, trainer_cls=Timed)
    with tempfile.TemporaryDirectory() as directory:
        run_experiment(task, params, directory, "train", trainer=trainer, export=False, verbose=False)
    return times, memory


class Variant:
    """A trainer of the experiment with other settings; runs single steps."""

    def __init__(self, shape: Any, overrides: dict[str, Any]) -> None:
        self._shape, self.done = shape, 0
        self.first_loss = float("nan")
        params = params_of(shape, overrides)
        params.override({"trainer": {"train_steps": 10**6, "steps_per_loop": 10}})
        task = WithMetrics(params.task) if overrides.get("metrics") else everstep.get_task(params.task)
        self._dtype = params.runtime.mixed_precision_dtype
        with precision(self._dtype):
            self._trainer = create_trainer(params, task, train=True, evaluate=False)
        self._trainer.engine.call_length = CallLength((1,))

    def run(self, steps: int) -> float:
        """Returns the seconds per step; keeps the loss of the first step."""
        with precision(self._dtype):
            if not self.done:
                self.first_loss = float(self._trainer.train(1)["training_loss"])
            self._trainer.engine.wait()
            begin = time.perf_counter()
            logs = self._trainer.train(steps)
            len(logs)
        self.done += steps
        return (time.perf_counter() - begin) / steps

    def memory(self) -> dict[str, float]:
        """Returns the memory of the compiled step."""
        return memory_of(self._trainer)

    def close(self) -> None:
        """Frees the state of the trainer."""
        self._trainer.close()
        self._trainer.engine.release()
        del self._trainer
        keras.utils.clear_session()


def memory_of(trainer: Trainer) -> dict[str, float]:
    """Returns the memory of a single step as compiled, in GB: what it holds besides its inputs, and all of it.

    The program is compiled once more, from the cache where there is one.
    """
    engine = trainer.engine
    block = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), trainer.train_example)
    before = engine.compilations
    try:
        compiled = engine.backend._function("train").lower(engine.backend._values, block).compile()
        found = compiled.memory_analysis()
        arguments = found.argument_size_in_bytes - found.alias_size_in_bytes + found.output_size_in_bytes
        total = found.temp_size_in_bytes + arguments
        return {"temp_gb": round(found.temp_size_in_bytes / 1e9, 3), "program_gb": round(total / 1e9, 3)}
    except Exception:  # a figure less
        return {}
    finally:
        engine.backend.compilations = before
