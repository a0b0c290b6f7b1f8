"""Every optimizer compared with its formula in NumPy over several steps, on the configured backend."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import pytest

from everstep.optim import OptimizationConfig
from everstep.task.optim.building import build

pytestmark = pytest.mark.backend

RATE = 0.1
STEPS = 5
Array = np.ndarray
Update = Callable[[Array, Array, int, float], Array]
"""Takes a weight, its gradient, the step, counted from 1, and the learning rate; returns the new weight."""


def sgd(momentum: float = 0.0, nesterov: bool = False) -> Update:
    velocity: Any = 0.0

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal velocity
        velocity = momentum * velocity - rate * g
        return w + (momentum * velocity - rate * g if nesterov else velocity)

    return update


def adam(decay: float = 0.0, epsilon: float = 1e-7) -> Update:
    m: Any = 0.0
    v: Any = 0.0

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        length = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)  # the paper's last form, where epsilon is not corrected
        return w - rate * decay * w - length * m / (np.sqrt(v) + epsilon)

    return update


def norm(x: Array) -> float:
    return float(np.sqrt((x**2).sum()))


def lamb(decay: float, adapts: bool) -> Update:
    m: Any = 0.0
    v: Any = 0.0

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        u = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + decay * w
        ratio = norm(w) / norm(u) if adapts and norm(w) > 0 and norm(u) > 0 else 1.0
        return w - rate * ratio * u

    return update


def lars(decay: float, adapts: bool, nesterov: bool, classic: bool) -> Update:
    v: Any = 0.0

    def scale(w: Array, u: Array, rate: float) -> float:
        return rate * (0.02 * norm(w) / norm(u) if adapts and norm(w) > 0 and norm(u) > 0 else 1.0)

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal v
        g = g + decay * w
        step = scale(w, g, rate) * g if classic else g
        v = 0.8 * v + step
        u = 0.8 * v + step if nesterov else v
        return w - (u if classic else scale(w, u, rate) * u)

    return update


def rmsprop(centered: bool, momentum: float) -> Update:
    square: Any = 0.0
    mean: Any = 0.0
    velocity: Any = 0.0

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal square, mean, velocity
        square, mean = 0.9 * square + 0.1 * g**2, 0.9 * mean + 0.1 * g
        velocity = momentum * velocity + rate * g / np.sqrt(square - (mean**2 if centered else 0) + 1e-7)
        return w - velocity

    return update


def adagrad() -> Update:
    total: Any = 0.1

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal total
        total = total + g**2
        return w - rate * g / np.sqrt(total + 1e-7)

    return update


def adafactor(relative: bool, threshold: float = 1.0) -> Update:
    rows: Any = 0.0
    columns: Any = 0.0

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal rows, columns
        decay, square = 1 - t**-0.8, g**2 + 1e-30
        if w.ndim == 1:
            rows = decay * rows + (1 - decay) * square
            v = rows
        else:
            rows = decay * rows + (1 - decay) * square.sum(-1)
            columns = decay * columns + (1 - decay) * square.sum(-2)
            v = np.outer(rows, columns) / rows.sum()
        u = g / np.sqrt(v)
        u = u / max(1.0, np.sqrt((u**2).mean()) / threshold)
        length = min(rate, t**-0.5) if relative else rate
        return w - length * max(1e-3, np.sqrt((w**2).mean())) * u

    return update


def muon(decay: float, nesterov: bool = True, scale: float | None = 0.2) -> Update:
    m: Any = 0.0

    def update(w: Array, g: Array, t: int, rate: float) -> Array:
        nonlocal m
        m = 0.95 * m + g
        x = g + 0.95 * m if nesterov else m
        x = x / (norm(x) + 1e-7)  # 3 x 4: the product with the transpose is the smaller one
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return w - rate * decay * w - rate * x * (1.0 if scale is None else scale * np.sqrt(max(w.shape)))

    return update


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shapes = {"kernel": (3, 4), "bias": (4,), "zeros": (2,)}
    return {name: rng.normal(size=shape) * (name != "zeros") for name, shape in shapes.items()}


def gradients() -> Iterator[dict[str, Array]]:
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        yield {name: rng.normal(size=value.shape) * 3 for name, value in weights().items()}


def expected(
    update: Callable[[str], Update],
    change: Callable[[dict[str, Array]], dict[str, Array]] = lambda grads: grads,
    factors: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Array]:
    values, updates = weights(), {name: update(name) for name in weights()}
    for step, grads in enumerate(gradients(), 1):
        grads = change(grads)
        rates = {name: RATE * factors.get(name, 1.0) for name in values}
        values = {name: updates[name](values[name], grads[name], step, rates[name]) for name in values}
    return values


def weights_after_updates(
    type_: str, fields: dict[str, Any], shares: tuple[float, ...] = (1.0,), **more: Any
) -> dict[str, Array]:
    """Returns the weights after the updates of an optimizer; each gradient is the average of several shares."""
    parts = {"optimizer": {"type": type_, type_: fields}, "learning_rate": {"constant": {"learning_rate": RATE}}}
    optimizer = build(OptimizationConfig({**parts, "gradient_accumulation_steps": len(shares), **more}))
    with keras.name_scope("layer"):
        variables = {name: keras.Variable(value, dtype="float32", name=name) for name, value in weights().items()}
    for grads, share in itertools.product(gradients(), shares):
        seen = [keras.ops.convert_to_tensor(g * share, "float32") for g in grads.values()]
        optimizer.apply(seen, list(variables.values()))
    return {name: keras.ops.convert_to_numpy(variable) for name, variable in variables.items()}


def global_clip(limit: float) -> Callable[[dict[str, Array]], dict[str, Array]]:
    def clip(grads: dict[str, Array]) -> dict[str, Array]:
        total = np.sqrt(sum((g**2).sum() for g in grads.values()))
        return {name: g * min(1.0, limit / total) for name, g in grads.items()}

    return clip


BIASES = ["bias$"]
CASES: list[Any] = [
    ("sgd", {}, lambda name: sgd()),
    ("sgd", {"momentum": 0.9, "nesterov": True}, lambda name: sgd(0.9, True)),
    ("adam", {"epsilon": 1e-3}, lambda name: adam(epsilon=1e-3)),
    (
        "adamw",
        {"weight_decay_rate": 0.3, "gradient_clip_norm": 0, "exclude_from_weight_decay": BIASES},
        lambda name: adam(0.0 if name == "bias" else 0.3),
    ),
    ("lamb", {}, lambda name: lamb(0.0, True)),
    (
        "lamb",
        {"weight_decay_rate": 0.3, "exclude_from_weight_decay": BIASES},
        lambda name: lamb(0.0 if name == "bias" else 0.3, name != "bias"),
    ),
    (
        "lamb",
        {"weight_decay_rate": 0.3, "exclude_from_layer_adaptation": BIASES},
        lambda name: lamb(0.3, name != "bias"),
    ),
    (
        "lamb",
        {"weight_decay_rate": 0.3, "exclude_from_weight_decay": BIASES, "exclude_from_layer_adaptation": []},
        lambda name: lamb(0.0 if name == "bias" else 0.3, True),
    ),
    *(
        (
            "lars",
            {
                **{"momentum": 0.8, "eeta": 0.02, "weight_decay_rate": 0.3, "nesterov": nesterov},
                **{"classic_momentum": classic, "exclude_from_weight_decay": ["^layer/b"]},
            },
            lambda name, n=nesterov, c=classic: lars(0.0 if name == "bias" else 0.3, name != "bias", n, c),
        )
        for nesterov in (False, True)
        for classic in (False, True)
    ),
    ("rmsprop", {}, lambda name: rmsprop(False, 0.0)),
    ("rmsprop", {"centered": True, "momentum": 0.5}, lambda name: rmsprop(True, 0.5)),
    ("adagrad", {}, lambda name: adagrad()),
    ("adafactor", {}, lambda name: adafactor(True)),
    ("adafactor", {"relative_step": False, "clip_threshold": 0.5}, lambda name: adafactor(False, 0.5)),
    ("muon", {}, lambda name: muon(0.004) if name == "kernel" else adam(0.004)),
    (
        "muon",
        {"nesterov": False, "rms_rate": None, "weight_decay": 0.3, "adam_weight_decay": 0.1},
        lambda name: muon(0.3, False, None) if name == "kernel" else adam(0.1),
    ),
    ("muon", {"exclude_layers": ["^layer/k"], "weight_decay": 0.3}, lambda name: adam(0.004)),
]


@pytest.mark.parametrize(("type_", "fields", "update"), CASES)
def test_updates_follow_the_formula(type_: str, fields: dict[str, Any], update: Callable[[str], Update]):
    values, wanted = weights_after_updates(type_, fields), expected(update)
    for name, value in values.items():
        np.testing.assert_allclose(value, wanted[name], rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("type_", "fields", "update"), CASES)
def test_gradients_of_several_steps_count_as_their_average(
    type_: str, fields: dict[str, Any], update: Callable[[str], Update]
):
    values, wanted = weights_after_updates(type_, fields, (0.25, 2.0, 0.75)), expected(update)
    for name, value in values.items():
        np.testing.assert_allclose(value, wanted[name], rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.daily("torch")
@pytest.mark.parametrize("shares", [(1.0,), (0.5, 1.5)])
@pytest.mark.parametrize(("type_", "fields", "update"), CASES)
def test_a_layer_is_updated_at_its_own_rate(
    type_: str, fields: dict[str, Any], update: Callable[[str], Update], shares: tuple[float, ...]
):
    """Also its weight decay follows that rate, where the optimizer multiplies both."""
    factors = {"kernel": 0.3, "zeros": 2.0}
    values = weights_after_updates(type_, fields, shares, layer_rates={"factors": {"/kernel$": 0.3, "zeros": 2.0}})
    wanted = expected(update, factors=factors)
    for name, value in values.items():
        np.testing.assert_allclose(value, wanted[name], rtol=2e-5, atol=2e-5, err_msg=name)


CLIPPED: list[Any] = [
    ("lamb", {"clipvalue": 0.5}, lambda grads: {name: g.clip(-0.5, 0.5) for name, g in grads.items()}),
    ("lamb", {"clipnorm": 2}, lambda grads: {name: g * min(1.0, 2 / norm(g)) for name, g in grads.items()}),
    ("lamb", {"global_clipnorm": 2}, global_clip(2.0)),
    ("adamw", {}, global_clip(1.0)),
]


@pytest.mark.parametrize(("type_", "fields", "clip"), CLIPPED)
def test_clipping_comes_before_the_update(type_: str, fields: dict[str, Any], clip: Callable[[Any], Any]):
    formula = {"lamb": lambda name: lamb(0.0, True), "adamw": lambda name: adam()}[type_]
    values, wanted = weights_after_updates(type_, fields, (0.5, 1.5)), expected(formula, clip)
    for name, value in values.items():
        np.testing.assert_allclose(value, wanted[name], rtol=2e-5, atol=2e-5, err_msg=name)


def test_adafactor_equals_that_of_keras_with_a_relative_step():
    value = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    ours, theirs = keras.Variable(value), keras.Variable(value)
    optimizers = build(OptimizationConfig({"optimizer": {"type": "adafactor"}})), keras.optimizers.Adafactor(1e-3)
    for step in range(3):
        gradient = keras.ops.convert_to_tensor(np.cos(value * (step + 1)))
        optimizers[0].apply([gradient], [ours])
        optimizers[1].apply([gradient], [theirs])
    np.testing.assert_allclose(keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(theirs), rtol=1e-6)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_adafactor_does_not_change_weights_without_a_gradient(size: float):
    """At the crossing of a zero row and a zero column both moments are tiny."""
    gradient = np.random.default_rng(0).normal(size=(4, 3)) * size
    gradient[0], gradient[:, 1] = 0, 0
    optimizer, weight = build(OptimizationConfig({"optimizer": {"type": "adafactor"}})), keras.Variable(np.ones((4, 3)))
    for _ in range(3):
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")], [weight])
    value = keras.ops.convert_to_numpy(weight)
    assert np.isfinite(value).all()
    np.testing.assert_array_equal(value == 1, gradient == 0)


def test_adafactor_keeps_rows_and_columns():
    optimizer = build(OptimizationConfig({"optimizer": {"type": "adafactor"}}))
    optimizer.build([keras.Variable(np.ones((30, 20)), name="kernel"), keras.Variable(np.ones(7), name="bias")])
    slots = {variable.name: tuple(variable.shape) for variable in optimizer.variables}
    assert slots == {
        **{"iteration": (), "learning_rate": ()},
        **{"kernel_row": (30,), "kernel_column": (20,), "bias_velocity": (7,)},
    }


@pytest.mark.parametrize("type_", ["lamb", "lars", "adagrad", "adafactor", "muon"])
def test_saving_and_loading_settings(type_: str):
    fields = {
        "lamb": {"weight_decay_rate": 0.1, "exclude_from_weight_decay": ["a"], "exclude_from_layer_adaptation": ["b"]},
        "lars": {"eeta": 0.1, "nesterov": True, "classic_momentum": False, "exclude_from_weight_decay": ["a"]},
        "adagrad": {"initial_accumulator_value": 0.3},
        "adafactor": {"relative_step": False, "clip_threshold": 2.0},
        "muon": {"ns_steps": 3, "rms_rate": None, "exclude_layers": ["a"], "exclude_embeddings": False},
    }[type_]
    optimizer = build(OptimizationConfig({"optimizer": {"type": type_, type_: fields}}))
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only a tape gives gradients as slices")
@pytest.mark.parametrize("type_", ["lamb", "lars", "adafactor", "muon"])
def test_gradients_of_embeddings_as_slices(type_: str):
    import tensorflow as tf

    results = []
    for as_slices in (True, False):
        optimizer, table = build(OptimizationConfig({"optimizer": {"type": type_}})), keras.Variable(np.ones((5, 3)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table.value, [1, 1, 2]) * [[1.0, 2.0, 3.0]])
        gradient = tape.gradient(loss, table.value)
        assert isinstance(gradient, tf.IndexedSlices)
        optimizer.apply([gradient if as_slices else tf.convert_to_tensor(gradient)], [table])
        results.append(table.numpy())
    np.testing.assert_array_equal(*results)
