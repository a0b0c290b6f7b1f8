"""What may change in a program between saving and restoring: pairs of experiments, before and after.

Each change leaves most of the state as it was: a careless restore would silently take that part.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

from everstep.testing.tasks import Regression

FEATURES, LENGTH, VOCABULARY = 4, 5, 16


class Watching(Regression):
    """A regression with these metrics, whose step may report a second loss."""

    def __init__(self, metrics: tuple[Callable[[], keras.Metric], ...] = (), second: bool = False, **held: Any) -> None:
        super().__init__(**held)
        self._make, self._second = metrics, second

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns fresh ones."""
        return [make() for make in self._make]

    def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        """Adds the second loss to what the step reports."""
        logs = super().train_step(inputs, model, optimizer, metrics)
        return {**logs, "second": logs[self.loss]} if self._second else logs


@dataclasses.dataclass(frozen=True)
class Parts:
    """An experiment, as functions that make its parts."""

    model: Callable[[], keras.Model]
    optimizer: Callable[[], keras.Optimizer] = functools.partial(keras.optimizers.Adam, 0.01)
    task: Callable[[], Regression] = functools.partial(Watching, (functools.partial(keras.metrics.Mean, "seen"),))


@dataclasses.dataclass(frozen=True)
class Change:
    """A change, in words and in parts; some programs only evaluate what another one has trained."""

    name: str
    before: Parts
    after: Parts
    evaluates: bool = False


def inputs_for(model: keras.Model) -> tuple[np.ndarray, np.ndarray]:
    """Returns 16 samples that fit a model of this file."""
    shape = (16, *model.input_shape[1:])
    choice = np.random.default_rng(0)
    tokens = "int" in model.inputs[0].dtype
    x = choice.integers(0, VOCABULARY, shape).astype("int32") if tokens else choice.normal(size=shape).astype("float32")
    return x, x.reshape(16, -1).sum(axis=1, keepdims=True).astype("float32")


# -- models ---------------------------------------------------------------------------------------------------------

Make = Callable[[], layers.Layer]


def stack(*make: Make, shape: tuple[int, ...] = (FEATURES,), dtype: str = "float32") -> Callable[[], keras.Model]:
    """Returns a function that makes a Sequential of these layers and a head."""
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *(each() for each in make), layers.Dense(1)])


def dense(units: int = 8, **options: Any) -> Make:
    return functools.partial(layers.Dense, units, "tanh", **options)


def functional() -> keras.Model:
    """The same layers as `MLP`, put together in the other way."""
    x = keras.Input((FEATURES,))
    return keras.Model(x, layers.Dense(1)(layers.Dense(8, "tanh")(layers.Dense(8, "tanh")(x))))


def branched() -> keras.Model:
    """`MLP` with a second way from the input to the head."""
    x = keras.Input((FEATURES,))
    return keras.Model(x, layers.Dense(1)(layers.Add()([dense()()(dense()()(x)), dense()()(x)])))


def tied() -> keras.Model:
    """One layer used twice, in place of two."""
    x, layer = keras.Input((8,)), layers.Dense(8, "tanh")
    return keras.Model(x, layers.Dense(1)(layer(layer(x))))


def frozen() -> keras.Model:
    """`MLP` whose first layer does not learn."""
    model = MLP()
    model.layers[0].trainable = False
    return model


def nested() -> layers.Layer:
    return keras.Sequential([layers.Dense(8, "tanh")])


MLP = stack(dense(), dense())
UNEQUAL = stack(dense(8), dense(6))
NORMAL = stack(dense(), layers.BatchNormalization)
DROPPING = stack(dense(), functools.partial(layers.Dropout, 0.2))
WIDE = stack(dense(), dense(), shape=(8,))


def convolving(filters: int = 4, size: int = 3) -> Callable[[], keras.Model]:
    conv = functools.partial(layers.Conv2D, filters, size)
    return stack(conv, layers.GlobalAveragePooling2D, shape=(6, 6, 1))


def recurrent(make: Callable[..., layers.Layer]) -> Callable[[], keras.Model]:
    return stack(lambda: make(6), shape=(LENGTH, 3))


def embedding(words: int) -> Callable[[], keras.Model]:
    embed = functools.partial(layers.Embedding, words, 8)
    return stack(embed, layers.GlobalAveragePooling1D, shape=(LENGTH,), dtype="int32")


# -- changes --------------------------------------------------------------------------------------------------------


def _model(name: str, before: Callable[[], keras.Model], after: Callable[[], keras.Model]) -> Change:
    return Change(name, Parts(before), Parts(after))


def _optimizer(name: str, before: Callable[[], Any], after: Callable[[], Any]) -> Change:
    return Change(name, Parts(MLP, before), Parts(MLP, after))


def _task(name: str, before: Callable[[], Any], after: Callable[[], Any]) -> Change:
    return Change(name, Parts(MLP, task=before), Parts(MLP, task=after))


def _evaluation(name: str, before: Callable[[], keras.Model], after: Callable[[], keras.Model]) -> Change:
    return Change(name, Parts(before), Parts(after), evaluates=True)


def _bidirectional(units: int) -> layers.Layer:
    return layers.Bidirectional(layers.GRU(units))


def _loss_scale() -> keras.Optimizer:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01))


def _held(**make: Callable[[], Any]) -> Callable[[], Watching]:
    return lambda: Watching(**{name: each() for name, each in make.items()})


_variable, _seed = functools.partial(keras.Variable, 0.0), functools.partial(keras.random.SeedGenerator, 1)
_adam, _sgd = functools.partial(keras.optimizers.Adam, 0.01), functools.partial(keras.optimizers.SGD, 0.01)
_mean, _sum = functools.partial(keras.metrics.Mean, "a"), functools.partial(keras.metrics.Sum, "a")
_decay = functools.partial(keras.optimizers.schedules.ExponentialDecay, 0.01, 10, 0.9)
_half = stack(dense(dtype="float16"), dense())

CHANGES: tuple[Change, ...] = (
    _model("a layer added in the middle", MLP, stack(dense(), dense(), dense())),
    _model("a layer added in front", MLP, stack(dense(4, name="first"), dense(), dense())),
    _model("a layer removed", MLP, stack(dense())),
    _model("a layer renamed", MLP, stack(dense(), dense(name="hidden"))),
    _model("two layers in the other order", UNEQUAL, stack(dense(6), dense(8))),
    _model("a normalization moved", NORMAL, stack(layers.BatchNormalization, dense())),
    _model("more units", MLP, stack(dense(), dense(9))),
    _model("a bias dropped", MLP, stack(dense(), dense(use_bias=False))),
    _model("a bias added", stack(dense(), dense(use_bias=False)), MLP),
    _model("a layer in float16", MLP, _half),
    _model("a layer back from float16", _half, MLP),
    _model("a layer in bfloat16", _half, stack(dense(dtype="bfloat16"), dense())),
    _model("BatchNormalization added", stack(dense()), NORMAL),
    _model("BatchNormalization for LayerNormalization", NORMAL, stack(dense(), layers.LayerNormalization)),
    _model("BatchNormalization without scale", NORMAL, stack(dense(), lambda: layers.BatchNormalization(scale=False))),
    _model("Dropout added", stack(dense()), DROPPING),
    _model("Dropout removed", DROPPING, stack(dense())),
    _model("GRU for LSTM", recurrent(layers.GRU), recurrent(layers.LSTM)),
    _model("GRU in both directions", recurrent(layers.GRU), recurrent(_bidirectional)),
    _model("a larger vocabulary", embedding(VOCABULARY), embedding(VOCABULARY + 1)),
    _model("more filters", convolving(), convolving(5)),
    _model("a larger kernel", convolving(), convolving(size=5)),
    _model("a layer inside another model", MLP, stack(dense(), nested)),
    _model("a second branch", MLP, branched),
    _model("a layer frozen", MLP, frozen),
    _model("two layers made one", WIDE, tied),
    _optimizer("Adam for SGD", _adam, _sgd),
    _optimizer("SGD for Adam", _sgd, _adam),
    _optimizer("momentum added", _sgd, lambda: keras.optimizers.SGD(0.01, momentum=0.9)),
    _optimizer("AMSGrad", _adam, lambda: keras.optimizers.Adam(0.01, amsgrad=True)),
    _optimizer("an average of the weights", _adam, lambda: keras.optimizers.Adam(0.01, use_ema=True)),
    _optimizer("accumulated gradients", _adam, lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)),
    _optimizer("a schedule for a constant rate", _adam, lambda: keras.optimizers.Adam(_decay())),
    _optimizer("loss scaling", _adam, _loss_scale),
    _task("a metric added", lambda: Watching(()), lambda: Watching((_mean,))),
    _task("a metric removed", lambda: Watching((_mean,)), lambda: Watching(())),
    _task("a metric renamed", lambda: Watching((_mean,)), lambda: Watching((lambda: keras.metrics.Mean("b"),))),
    _task("another metric of the same name", lambda: Watching((_mean,)), lambda: Watching((_sum,))),
    _task("a second loss reported", lambda: Watching(()), lambda: Watching((), second=True)),
    _task("a seed generator added to the task", _held(), _held(seed=_seed)),
    _task("a variable added to the task", _held(), _held(number=_variable)),
    _task("a variable removed from the task", _held(number=_variable), _held()),
    _task("a variable of another shape", _held(number=_variable), _held(number=lambda: keras.Variable([0.0, 0.0]))),
    _task("a variable renamed", _held(number=_variable), _held(amount=_variable)),
    _task("a second model in the task", _held(), _held(teacher=MLP)),
    _evaluation("evaluated with more units", MLP, stack(dense(), dense(9))),
    _evaluation("evaluated with a layer more", MLP, stack(dense(), dense(), layers.BatchNormalization)),
    _evaluation("evaluated with a layer less", NORMAL, stack(dense())),
    _evaluation("evaluated with a bias less", MLP, stack(dense(), dense(use_bias=False))),
)

SAME: tuple[Change, ...] = (
    _model("the same", DROPPING, DROPPING),
    _model("a Sequential as a functional model", MLP, functional),
    _optimizer("another learning rate", _adam, lambda: keras.optimizers.Adam(0.5)),
    _evaluation("evaluated as it is", NORMAL, NORMAL),
)
"""What is no change of the structure: all of the state must come back."""
