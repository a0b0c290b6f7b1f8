"""Faster forms of Keras's operations: the same numbers up to rounding, and fewer operations; on a CPU Keras's own bits.

They are made for GPUs. Here the CPU is added to the devices on which they are used.
"""

import collections
import threading

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.backend

if keras.backend.backend() != "torch":
    pytest.skip("these forms are PyTorch's", allow_module_level=True)

import torch  # noqa: E402
from keras import layers, ops  # noqa: E402
from tests.engine.operation_list import recording_engine  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import everstep as es  # noqa: E402
from everstep.engine import torch_forms  # noqa: E402
from everstep.engine.backend import create_engine  # noqa: E402
from everstep.engine.torch import own_operations  # noqa: E402
from everstep.task.grad import value_and_grad  # noqa: E402
from everstep.testing import models  # noqa: E402
from everstep.testing.tasks import Regression, running, seeded  # noqa: E402

FLOAT32, HALF = "float32", "mixed_bfloat16"


@pytest.fixture(autouse=True)
def same_weights():
    keras.utils.set_random_seed(0)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(torch_forms, "DEVICES", {"cpu", "cuda"})


class Counted(TorchDispatchMode):
    """Counts the operations of PyTorch that are no views."""

    def __init__(self):
        super().__init__()
        self.names = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns):
            self.names[func._schema.name.removeprefix("aten::")] += 1
        return func(*args, **(kwargs or {}))


def step_of(model, x, training=True):
    """Returns the outputs, the gradients, the other variables after the step, and the operations."""
    weights = [variable.numpy().copy() for variable in model.variables]
    given = keras.Variable(x)
    with own_operations(), Counted() as counted:

        def loss_fn():
            outputs = model(given.value, training=training)
            weights = ops.reshape(ops.sin(ops.arange(ops.size(outputs), dtype="float32")), outputs.shape)
            return ops.sum(ops.cast(outputs, "float32") * weights), outputs

        (_, outputs), gradients = value_and_grad(loss_fn, [given, *model.trainable_variables])
    others = [variable.numpy().copy() for variable in model.non_trainable_variables]
    for variable, value in zip(model.variables, weights, strict=True):
        variable.assign(value)
    numbers = [np.asarray(ops.cast(one, "float32").detach()) for one in (outputs, *gradients)]
    return [*numbers, *others], gradients, counted.names


def check_same(model, x, monkeypatch, training=True, half=False):
    monkeypatch.setattr(torch_forms, "DEVICES", {"cuda"})
    expected, _, before = step_of(model, x, training)
    monkeypatch.setattr(torch_forms, "DEVICES", {"cpu"})
    got, gradients, after = step_of(model, x, training)
    for one, other in zip(expected, got, strict=True):
        assert one.shape == other.shape
        scale = max(np.abs(one).max(initial=0.0), 1e-3)
        np.testing.assert_allclose(other / scale, one / scale, atol=0.04 if half else 2e-5)
    for variable, gradient in zip(model.trainable_variables, gradients[1:], strict=True):
        if len(variable.shape) > 2 and "conv" in variable.path:
            assert gradient.is_contiguous(), variable.path
    return before, after


def images(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


CONVOLUTIONS = {
    "same": lambda: layers.Conv2D(5, 3, padding="same"),
    "same, strides, even kernel": lambda: layers.Conv2D(5, 4, strides=(2, 3), padding="same"),
    "valid, strides": lambda: layers.Conv2D(4, (3, 2), strides=2),
    "1x1": lambda: layers.Conv2D(7, 1, use_bias=False),
    "dilated": lambda: layers.Conv2D(4, 3, padding="same", dilation_rate=2),
    "groups": lambda: layers.Conv2D(6, 3, groups=3, padding="same"),
    "depthwise": lambda: layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2),
    "depthwise, strides": lambda: layers.DepthwiseConv2D(3, strides=2),
    "separable": lambda: layers.SeparableConv2D(5, 3, padding="same"),
    "transposed": lambda: layers.Conv2DTranspose(5, 2, strides=2, padding="same"),
    "transposed, odd": lambda: layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
    "transposed, valid, dilated": lambda: layers.Conv2DTranspose(4, 3, padding="valid", dilation_rate=2),
    "max pooling": lambda: layers.MaxPooling2D(3, 2, padding="same"),
    "average pooling": lambda: layers.AveragePooling2D(2, padding="same"),
    "average pooling, valid": lambda: layers.AveragePooling2D((3, 2), 1),
    "padded by a layer": lambda: keras.Sequential([layers.ZeroPadding2D(1), layers.Conv2D(3, 3, strides=2)]),
}


@pytest.mark.parametrize("channels", [1, 3, 6])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_images(name, channels, monkeypatch):
    if name == "groups" and channels % 3:
        channels = 9
    model = keras.Sequential([keras.Input((7, 9, channels)), CONVOLUTIONS[name]()])
    check_same(model, images(2, 7, 9, channels), monkeypatch)


@pytest.mark.parametrize("name", ["same", "depthwise", "transposed, odd", "max pooling", "groups"])
def test_half_precision(name, monkeypatch):
    with _policy(HALF):
        model = keras.Sequential([keras.Input((7, 9, 6)), CONVOLUTIONS[name]()])
    check_same(model, images(2, 7, 9, 6), monkeypatch, half=True)


class _policy:
    """Builds layers with a policy."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.before = keras.mixed_precision.global_policy()
        keras.mixed_precision.set_global_policy(self.name)

    def __exit__(self, *_):
        keras.mixed_precision.set_global_policy(self.before)


OTHER_RANKS = {
    "1D": ((2, 11, 4), lambda: layers.Conv1D(5, 3, strides=2, padding="same")),
    "1D, causal": ((2, 11, 4), lambda: layers.Conv1D(5, 3, padding="causal", dilation_rate=2)),
    "1D, transposed": ((2, 11, 4), lambda: layers.Conv1DTranspose(5, 3, strides=2)),
    "1D, separable": ((2, 11, 4), lambda: layers.SeparableConv1D(5, 3)),
    "1D, max pooling": ((2, 11, 4), lambda: layers.MaxPooling1D(3, 2, padding="same")),
    "1D, average pooling": ((2, 11, 4), lambda: layers.AveragePooling1D(2)),
    "3D": ((2, 5, 6, 7, 3), lambda: layers.Conv3D(4, 3, strides=2, padding="same")),
    "3D, transposed": ((2, 4, 3, 5, 3), lambda: layers.Conv3DTranspose(4, 2, strides=2)),
    "3D, max pooling": ((2, 5, 6, 7, 3), lambda: layers.MaxPooling3D(2)),
    "3D, average pooling": ((2, 5, 6, 7, 3), lambda: layers.AveragePooling3D(2, padding="same")),
    "adaptive pooling": ((2, 9, 7, 3), lambda: layers.AdaptiveAveragePooling2D((3, 2))),
}


@pytest.mark.parametrize("name", OTHER_RANKS)
def test_other_ranks(name, monkeypatch):
    shape, make = OTHER_RANKS[name]
    check_same(keras.Sequential([keras.Input(shape[1:]), make()]), images(*shape), monkeypatch)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.Conv2D(5, 3, padding="same", strides=2, data_format="channels_first"),
        lambda: layers.Conv2DTranspose(5, 3, strides=2, data_format="channels_first"),
        lambda: layers.MaxPooling2D(2, data_format="channels_first"),
        lambda: layers.BatchNormalization(axis=1),
    ],
)
def test_channels_first(make, monkeypatch):
    model = keras.Sequential([keras.Input((4, 8, 6)), make()])
    check_same(model, images(2, 4, 8, 6), monkeypatch)


def test_a_network_copies_no_images(monkeypatch):
    stack = [layers.Conv2D(8, 3, padding="same", activation="relu"), layers.MaxPooling2D(), layers.Conv2D(4, 1)]
    model = keras.Sequential([keras.Input((8, 8, 3)), *stack])
    before, after = check_same(model, images(2, 8, 8, 3), monkeypatch)
    assert before["clone"] > after["clone"] == 4  # each of the two kernels, and its gradient


# -- batch normalization ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("policy", [FLOAT32, HALF])
@pytest.mark.parametrize("shape", [(6, 5), (3, 4, 5), (2, 4, 3, 5), (2, 3, 4, 2, 5), (2, 4, 3, 1)], ids=str)
def test_batch_normalization(shape, policy, training, monkeypatch):
    with _policy(policy):
        layer = layers.BatchNormalization(momentum=0.8, epsilon=1e-2)
        model = keras.Sequential([keras.Input(shape[1:]), layer])
    random = np.random.default_rng(1)
    for variable in layer.variables:
        variable.assign(random.uniform(0.5, 2.0, variable.shape))
    before, after = check_same(model, 3.0 * images(*shape) + 2.0, monkeypatch, training, policy == HALF)
    assert after["native_batch_norm"] == 1
    assert sum(after.values()) < sum(before.values())


@pytest.mark.parametrize("options", [{"scale": False}, {"center": False}, {"scale": False, "center": False}], ids=str)
def test_without_scale_or_center(options, monkeypatch):
    for policy in (FLOAT32, HALF):
        with _policy(policy):
            model = keras.Sequential([keras.Input((4, 3, 5)), layers.BatchNormalization(**options)])
        _, after = check_same(model, images(2, 4, 3, 5), monkeypatch, half=policy == HALF)
        assert after["native_batch_norm"] == 1


def test_statistics_are_those_of_keras(monkeypatch):
    """The averages follow the biased variance, over many steps, also where it is tiny."""
    ended = []
    for devices in ({"cuda"}, {"cpu"}):
        monkeypatch.setattr(torch_forms, "DEVICES", devices)
        layer = layers.BatchNormalization(momentum=0.9)
        random = np.random.default_rng(0)
        for _ in range(100):
            x = random.normal(5.0, [1e-4, 1.0, 100.0], (3, 2, 2, 3)).astype("float32")
            with own_operations():
                layer(x, training=True)
        ended.append([layer.moving_mean.numpy(), layer.moving_variance.numpy()])
    np.testing.assert_allclose(ended[1][0], ended[0][0], rtol=1e-5)
    np.testing.assert_allclose(ended[1][1][1:], ended[0][1][1:], rtol=1e-5)
    assert 0.0 <= ended[1][1][0] < 1e-4


class Twice(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm, self.dense = layers.BatchNormalization(), layers.Dense(4, "tanh")

    def call(self, x, training=False):
        return self.norm(self.dense(self.norm(x, training=training)), training=training)


def test_a_layer_that_is_called_twice(monkeypatch):
    model = Twice()
    model(np.zeros((1, 4), "float32"))
    check_same(model, images(8, 4), monkeypatch)


@pytest.mark.parametrize("kind", ["mask", "renorm", "one sample", "other axis", "frozen", "float64"])
def test_where_the_form_does_not_apply(kind, monkeypatch):
    """Keras's own operation runs where PyTorch's is another one; a layer that is not trained uses its averages."""
    options = {"renorm": {"renorm": True}, "other axis": {"axis": 2}, "float64": {"dtype": "float64"}}.get(kind, {})
    layer = layers.BatchNormalization(**options)
    layer.trainable = kind != "frozen"
    inputs = keras.Input((6, 4, 2) if kind == "other axis" else (6, 4))
    x = layers.Masking()(inputs) if kind == "mask" else inputs
    model = keras.Model(inputs, layer(layers.GlobalAveragePooling1D()(x) if kind == "one sample" else x))
    data = images(1 if kind == "one sample" else 3, *inputs.shape[1:])
    data[0, 3:] = 0.0
    _, after = check_same(model, data, monkeypatch)
    assert after["native_batch_norm"] == (kind == "frozen")


@pytest.mark.parametrize("policy", [FLOAT32, HALF])
@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"groups": -1}, {"axis": 1}, {"scale": False}], ids=str)
def test_group_normalization(options, policy, monkeypatch):
    for shape in ((2, 6, 6), (2, 6, 3, 6), (2, 6, 2, 3, 6)):
        with _policy(policy):
            layer = layers.GroupNormalization(**{"groups": 3, **options})
            model = keras.Sequential([keras.Input(shape[1:]), layer])
        for variable in layer.variables:
            variable.assign(np.random.default_rng(1).uniform(0.5, 2.0, variable.shape))
        _, after = check_same(model, 3.0 * images(*shape) + 2.0, monkeypatch, half=policy == HALF)
        assert after["native_group_norm"] == 1


# -- dense layers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FLOAT32, HALF])
@pytest.mark.parametrize(
    ("shape", "make", "fused"),
    [
        ((3, 4), lambda: layers.Dense(5, "gelu"), True),
        ((3, 2, 4), lambda: layers.Dense(5), True),
        ((3, 2, 2, 4), lambda: layers.Dense(1, "tanh"), True),
        ((3, 4), lambda: layers.Dense(5, use_bias=False), False),
        ((3, 2, 4), lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"), True),
        ((3, 2, 2, 4), lambda: layers.EinsumDense("abcd,cde->abe", (None, 5), bias_axes="e"), True),
        ((3, 2, 4), lambda: layers.EinsumDense("abc,cd->abd", (None, 5)), False),
        ((3, 2, 4), lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="e"), False),
        ((3, 2, 4), lambda: layers.EinsumDense("abc,bcd->abd", (2, 5), bias_axes="d"), False),
        ((3, 2, 4), lambda: layers.EinsumDense("abc,cde->aebd", (3, 2, 2), bias_axes="e"), False),
        ((3, 2, 4), lambda: layers.EinsumDense("...x,xy->...y", (2, 5), bias_axes="y"), False),
    ],
)
def test_dense_layers(shape, make, fused, policy, monkeypatch):
    with _policy(policy):
        layer = make()
        model = keras.Sequential([keras.Input(shape[1:]), layer])
    if layer.bias is not None:
        layer.bias.assign(np.random.default_rng(1).normal(size=layer.bias.shape))
    before, after = check_same(model, images(*shape), monkeypatch, half=policy == HALF)
    assert (after["addmm"] > before["addmm"]) == fused


def test_attention(monkeypatch):
    x = keras.Input((6, 8))
    model = keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    before, after = check_same(model, images(2, 6, 8), monkeypatch)
    assert after["addmm"] == 4
    assert sum(after.values()) < sum(before.values())


# -- updates ----------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adam, large epsilon": lambda: keras.optimizers.Adam(0.01, epsilon=0.1, beta_1=0.5),
    "adam without momentum": lambda: keras.optimizers.Adam(0.01, beta_1=0.0),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adam with weight decay": lambda: keras.optimizers.Adam(0.01, weight_decay=0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 5)),
    "sgd": lambda: keras.optimizers.SGD(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True, weight_decay=0.01),
    "momentum, schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5), momentum=0.9
    ),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "global clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
    "clipnorm": lambda: keras.optimizers.SGD(0.01, clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.01, clipvalue=0.01),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "loss scale": lambda: keras.optimizers.Adam(0.01, loss_scale_factor=8.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates(name, monkeypatch):
    ended, operations = [], []
    for devices in ({"cuda"}, {"cpu"}):
        monkeypatch.setattr(torch_forms, "DEVICES", devices)
        random = np.random.default_rng(0)
        weights = [keras.Variable(random.normal(size=shape).astype("float32")) for shape in ((3, 4), (5,), (2, 3, 2))]
        optimizer = OPTIMIZERS[name]()
        optimizer.build(weights)
        for _ in range(5):
            gradients = [torch.as_tensor(random.normal(size=w.shape).astype("float32")) for w in weights]
            gradients[0] = gradients[0].T.contiguous().T  # the order of a transposed product
            kept = [gradient.clone() for gradient in gradients]
            with own_operations(), Counted() as counted:
                optimizer.apply(gradients, weights)
            assert all(torch.equal(one, other) for one, other in zip(gradients, kept, strict=True))
        ended.append([variable.numpy() for variable in (*weights, *optimizer.variables)])
        operations.append(sum(counted.names.values()))
    for one, other in zip(*ended, strict=True):
        np.testing.assert_allclose(other, one, rtol=2e-5, atol=1e-6)
    if "adam" in name or name in ("momentum", "global clipnorm", "ema"):
        assert operations[1] < operations[0]


def test_a_learning_rate_of_zero(on_cpu):
    weight = keras.Variable(np.ones(3, "float32"))
    for optimizer in (keras.optimizers.SGD(0.0, momentum=0.9), keras.optimizers.Adam(0.0)):
        optimizer.build([weight])
        with own_operations():
            optimizer.apply([torch.ones(3)], [weight])
        assert (weight.numpy() == 1.0).all()


def test_strides_of_axes_of_size_one(on_cpu):
    """They may be any, and must not keep all variables from being updated at once."""
    weight = keras.Variable(np.ones((3, 1), "float32"))
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([weight])
    with own_operations(), Counted() as counted:
        optimizer.apply([torch.empty_strided((3, 1), (1, 7)).fill_(2.0)], [weight])
    assert counted.names["_fused_adam_"] == 1
    np.testing.assert_allclose(weight.numpy(), 0.9, rtol=1e-6)


def test_gradients_in_half_precision_use_kerass_update(on_cpu):
    weight = keras.Variable(np.ones(3, "float32"), dtype="bfloat16")
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([weight])
    with own_operations(), Counted() as counted:
        optimizer.apply([torch.ones(3, dtype=torch.bfloat16)], [weight])
    assert not counted.names["_fused_adam_"]


# -- whole runs -------------------------------------------------------------------------------------------------------


def network():
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = layers.Activation("relu")(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D()(layers.DepthwiseConv2D(3, strides=2, padding="same")(x))
    x = layers.Conv2DTranspose(3, 3, strides=2, padding="same")(x)
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=1.0, use_ema=True), "mse", metrics=["mae"])
    return model


def history(directory, policy=FLOAT32):
    keras.utils.set_random_seed(0)
    with _policy(policy):
        model = network()
    random = np.random.default_rng(0)
    x, y = images(40, 8, 8, 3), random.normal(size=(40, 2)).astype("float32")
    call = {"batch_size": 8, "epochs": 3, "validation_data": (x[:16], y[:16]), "verbose": 0}
    return es.fit(model, x, y, model_dir=directory, seed=0, export=[], **call).history


@pytest.mark.parametrize("policy", [FLOAT32, HALF])
def test_a_run(policy, tmp_path, monkeypatch):
    """The curves are those without the forms; twice the same bits with them."""
    plain = history(tmp_path / "plain", policy)
    monkeypatch.setattr(torch_forms, "DEVICES", {"cpu"})
    one, other = (history(tmp_path / name, policy) for name in ("one", "other"))
    assert one == other
    for name, values in plain.items():
        np.testing.assert_allclose(one[name], values, rtol=0.1 if policy == HALF else 1e-3)


@pytest.mark.parametrize("kind", models.MODELS)
def test_recorded_steps_have_the_same_bits(kind, on_cpu):
    digests = set()
    for make in (create_engine, recording_engine):
        with running(make, Regression(), seeded(models.MODELS[kind]), long_calls=True) as rig:
            assert rig.engine.is_eager == (make is create_engine), rig.engine.describe()
            rig.run(7, 5)
            digests.add(rig.digest())
    assert len(digests) == 1


def test_rematerialized_layers(tmp_path, on_cpu):
    from everstep.engine.remat import rematerialize

    ended = []
    for wanted in (None, ["block"]):
        keras.utils.set_random_seed(0)
        stack = [layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
        block = keras.Sequential([keras.Input((6, 6, 3)), *stack], name="block")
        model = keras.Sequential([keras.Input((6, 6, 3)), block, layers.Flatten(), layers.Dense(2)])
        rematerialize(model, wanted)
        model.compile("adam", "mse")
        x = images(16, 6, 6, 3)
        es.fit(model, x, x[:, 0, 0, :2], batch_size=8, epochs=2, verbose=0, model_dir=tmp_path / str(wanted), seed=0)
        ended.append([variable.numpy() for variable in model.variables])
    for one, other in zip(*ended, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


# -- where they are used ----------------------------------------------------------------------------------------------


def test_a_cpu_keeps_kerass_operations():
    layer = layers.BatchNormalization()
    layer.build((None, 3))
    with own_operations(), Counted() as counted:
        layer(torch.ones(4, 3), training=True)
    assert not counted.names["native_batch_norm"]


def test_other_threads_keep_kerass_operations(on_cpu):
    layer, seen = layers.BatchNormalization(), {}
    layer.build((None, 3))

    def count(name):
        with Counted() as counted:
            layer(torch.ones(4, 3), training=True)
        seen[name] = counted.names["native_batch_norm"]

    with own_operations():
        thread = threading.Thread(target=count, args=("other",))
        thread.start()
        thread.join()
        count("own")
    count("after")
    assert seen == {"other": 0, "own": 1, "after": 0}
