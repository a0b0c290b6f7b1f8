"""Models that `model.fit` takes: steps and losses of their own, several outputs, metrics of any kind."""

import math
import os
import signal
import subprocess
import sys

import gan_program
import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep as es
from everstep.engine.backend import create_engine
from everstep.errors import UsageError
from everstep.loop.recovery import Recovery
from everstep.task.compiled import CompiledTask
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.usefixtures("no_export")]

BACKEND = keras.backend.backend()
X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = (np.arange(24) % 3).astype("int32")
QUICK = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}

not_jax = pytest.mark.skipif(BACKEND == "jax", reason="Keras's steps on JAX get one optimizer's state")


def compiled_model(build, *args, **kwargs):
    keras.utils.set_random_seed(0)
    model = build()
    model.compile(*args, **kwargs)
    return model


def assert_as_in_fit(make, x, y=None, **kwargs):
    """Trains one model by `fit` and one by us; returns both histories, which are the same."""
    wanted = make().fit(x, y, **QUICK, **kwargs).history
    got = es.fit(make(), x, y, **QUICK, **kwargs).history
    assert list(got) == list(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(np.array(got[name]), np.array(values), rtol=1e-5, atol=1e-7, err_msg=name)
    return got


def dense(units=1, activation=None):
    return keras.Sequential([keras.Input((4,)), layers.Dense(units, activation)])


# -- custom steps ------------------------------------------------------------------------------------------------------


@not_jax
def test_a_gan_logs_what_it_returns_and_learns_as_in_fit():
    wanted, got = gan_program.compiled_gan(), gan_program.compiled_gan()
    if BACKEND == "torch":
        for model in (wanted, got):
            model.discriminator.layers[2].rate = 0.0  # there `fit` draws from PyTorch's global generator
    history = wanted.fit(gan_program.X, **QUICK).history
    assert es.fit(got, gan_program.X, **QUICK).history == history
    assert list(history) == ["d_loss", "g_loss"]
    assert gan_program.digest(got) == gan_program.digest(wanted)


@not_jax
def test_a_gan_resumes_with_its_optimizers_and_what_it_draws(tmp_path):
    wanted = gan_program.fit_gan(tmp_path / "whole")
    for epochs in (1, 3):
        gan_program.fit_gan(tmp_path / "parts", epochs)
    assert gan_program.fit_gan(tmp_path / "parts") == wanted


@not_jax
@pytest.mark.full
def test_a_gan_that_was_killed_has_the_same_bits(tmp_path):
    wanted = gan_program.fit_gan(tmp_path / "whole", callbacks=[gan_program.Killed(99)])
    program = [sys.executable, gan_program.__file__, str(tmp_path / "killed"), "2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(program, env=environment, check=False).returncode == -signal.SIGKILL
    assert gan_program.fit_gan(tmp_path / "killed", callbacks=[gan_program.Killed(99)]) == wanted


@not_jax
def test_a_changed_optimizer_of_the_model_is_refused(tmp_path):
    kept = {**QUICK, "model_dir": tmp_path / "run"}
    es.fit(gan_program.compiled_gan(), gan_program.X, **kept)
    with raises_problem(key="model.optimizers.d_optimizer.learning_rate", reason="0.01 -> 0.5"):
        es.fit(gan_program.compiled_gan(rate=0.5), gan_program.X, **{**kept, "epochs": 3})


@not_jax
@pytest.mark.parametrize("watch", ["d_loss", "g_loss"])
def test_the_first_log_or_the_named_one_is_watched(watch):
    model = gan_program.compiled_gan()
    task = CompiledTask(model, watch="" if watch == "d_loss" else watch)
    engine = create_engine(task, model, model.optimizer)
    engine.build(gan_program.X[:8])
    assert engine.watched_log == watch
    judged = Recovery(watched=watch).problem_in_logs(3, {"d_loss": 1.0, "g_loss": 1.0, watch: math.nan})
    assert judged == f"{watch} is nan at step 3"


@not_jax
def test_an_unknown_log_to_watch_is_refused():
    with raises_problem(key="watch", received="g_los", remedy="did you mean 'g_loss'"):
        es.fit(gan_program.compiled_gan(), gan_program.X, **QUICK, watch="g_los")


class Distiller(keras.Model):
    """As keras.io's: `compile` and `compute_loss` of its own, the latter without `training`."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = dense(3), dense(3)

    def compile(self, optimizer, metrics, student_loss_fn, alpha=0.1):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn, self.alpha = student_loss_fn, alpha

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        distance = ops.mean(ops.square(self.teacher(x, training=False) - y_pred))
        return self.alpha * self.student_loss_fn(y, y_pred) + (1 - self.alpha) * distance

    def call(self, x):
        return self.student(x)


def test_compute_loss_without_training():
    def make():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metrics = [keras.metrics.SparseCategoricalAccuracy()]
        return compiled_model(Distiller, optimizer="adam", metrics=metrics, student_loss_fn=loss)

    assert_as_in_fit(make, X, CLASSES, validation_data=(X, CLASSES))


class OwnMetrics(keras.Model):
    """Lists its own metrics, without the tracker of the loss, as a VAE does."""

    def __init__(self):
        super().__init__()
        self.layer, self.total = keras.layers.Dense(1), keras.metrics.Mean("total_loss")

    @property
    def metrics(self):
        return [self.total]

    def call(self, x):
        return self.layer(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = keras.ops.mean((x[:, :1] - y_pred) ** 2)
        self.total.update_state(loss)
        return loss


def test_metrics_without_the_loss_log_no_loss():
    history = assert_as_in_fit(lambda: compiled_model(OwnMetrics, "sgd"), X)
    assert sorted(history) == ["total_loss"]


def test_steps_with_any_arguments_and_logs_without_a_loss():
    class Counted(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.traced = 0

        def train_step(self, *args):
            self.traced += 1
            result = super().train_step(*args)
            logs = result[0] if isinstance(result, tuple) else result
            logs.pop("loss")
            logs["constant"] = 7.0
            return result

    def build():
        x = keras.Input((4,))
        return Counted(x, layers.Dense(1)(x))

    history = assert_as_in_fit(lambda: compiled_model(build, "sgd", "mse", metrics=["mae"]), X, Y)
    assert sorted(history) == ["constant", "mae"]


def test_compute_metrics_may_add_logs():
    class Own(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.own = keras.metrics.Mean(name="own")

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            self.own.update_state(ops.mean(y_pred))
            return {**logs, "own": self.own.result(), "twice": 2 * self.own.result()}

    def build():
        x = keras.Input((4,))
        return Own(x, layers.Dense(1)(x))

    assert_as_in_fit(lambda: compiled_model(build, "sgd", "mse", metrics=["mae"]), X, Y, validation_data=(X, Y))


# -- outputs and metrics -----------------------------------------------------------------------------------------------


class TwoOutputs(keras.Model):
    """Not built before it sees data."""

    def __init__(self, as_list=False):
        super().__init__()
        self.a, self.b, self.as_list = layers.Dense(1), layers.Dense(1), as_list

    def call(self, x):
        return [self.a(x), self.b(x)] if self.as_list else {"a": self.a(x), "b": self.b(x)}


def test_the_same_metric_on_two_outputs_of_an_unbuilt_model():
    options = {"metrics": {"a": ["mae"], "b": ["mae"]}, "loss_weights": {"a": 1.0, "b": 0.5}}
    labels = {"a": Y, "b": 2 * Y}
    make = lambda: compiled_model(TwoOutputs, "sgd", {"a": "mse", "b": "mse"}, **options)  # noqa: E731
    history = assert_as_in_fit(make, X, labels, validation_data=(X, labels))
    assert {"a_mae", "b_mae", "val_a_mae", "val_b_mae"} <= set(history)


def test_equal_losses_and_metrics_of_a_list_of_outputs(tmp_path):
    labels = [Y, 2 * Y]
    make = lambda: compiled_model(lambda: TwoOutputs(True), "sgd", ["mse", "mse"], metrics=[["mae"], ["mae"]])  # noqa: E731
    history = assert_as_in_fit(make, X, labels)
    kept = {**QUICK, "model_dir": tmp_path / "run"}
    es.fit(make(), X, labels, **{**kept, "epochs": 1})
    assert es.fit(make(), X, labels, **kept).history == history


def test_metrics_of_one_name():
    def make():
        own = [keras.metrics.MeanSquaredError(name="m"), keras.metrics.MeanAbsoluteError(name="m")]
        return compiled_model(dense, "sgd", "mse", metrics=[*own, "mae"], weighted_metrics=["mae"])

    weight = np.linspace(0, 2, 24, dtype="float32")
    history = assert_as_in_fit(make, X, Y, sample_weight=weight)
    assert {"m", "m_1", "mae", "weighted_mae"} & set(history)


@pytest.mark.full
def test_metrics_with_several_results_keep_their_name(tmp_path):
    labels = np.eye(3, dtype="float32")[CLASSES]

    def make():
        metrics = [keras.metrics.F1Score(name="each"), keras.metrics.F1Score(average="macro")]
        return compiled_model(lambda: dense(3, "softmax"), "sgd", "categorical_crossentropy", metrics=metrics)

    history = assert_as_in_fit(make, X, labels, validation_data=(X, labels))
    assert np.shape(history["each"][0]) == (3,)
    stop = keras.callbacks.EarlyStopping("val_f1_score", mode="max", patience=0, min_delta=1.0)
    stopped = es.fit(make(), X, labels, **{**QUICK, "epochs": 5}, validation_data=(X, labels), callbacks=[stop])
    assert len(stopped.epoch) == 2
    kept = {**QUICK, "model_dir": tmp_path / "run", "validation_data": (X, labels)}
    es.fit(make(), X, labels, **{**kept, "epochs": 1})
    resumed = es.fit(make(), X, labels, **kept).history
    np.testing.assert_array_equal(np.array(resumed["each"]), np.array(history["each"]))
    assert "each/0" in (tmp_path / "run" / "history.csv").read_text().splitlines()[0]


@pytest.mark.full
def test_names_do_not_depend_on_earlier_trainings(tmp_path):
    """The counters by which Keras names layers and metrics are where `fit` leaves them."""

    def names_after(fit):
        keras.backend.clear_session()
        fit(
            compiled_model(
                lambda: dense(1, "sigmoid"), "sgd", "binary_crossentropy", metrics=[keras.metrics.AUC(), "auc"]
            )
        )
        return layers.Dense(1).name, keras.metrics.AUC().name, keras.metrics.Precision().name

    labels = (Y > 0).astype("float32")
    wanted = names_after(lambda model: model.fit(X, labels, **QUICK))
    assert names_after(lambda model: es.fit(model, X, labels, **QUICK)) == wanted
    assert names_after(lambda model: es.fit(model, X, labels, **QUICK, model_dir=tmp_path / "run")) == wanted


def test_changed_metrics_are_named_when_a_run_resumes(tmp_path):
    kept = {**QUICK, "model_dir": tmp_path / "run"}
    es.fit(compiled_model(dense, "sgd", "mse", metrics=["mae"]), X, Y, **kept)
    reason = "metrics are not those .* new: .*percentage_error; gone: mean_absolute_error .4 differences."
    with raises_problem(reason=reason, remedy="start a new run"):
        es.fit(compiled_model(dense, "sgd", "mse", metrics=["mape"]), X, Y, **{**kept, "epochs": 3})


# -- layers that remember ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(BACKEND == "torch", reason="there Keras itself cannot train a stateful RNN")
def test_stateful_layers_remember_from_batch_to_batch(tmp_path):
    x = np.random.default_rng(0).normal(size=(24, 3, 2)).astype("float32")

    def build():
        return keras.Sequential([keras.Input(batch_shape=(8, 3, 2)), layers.GRU(4, stateful=True), layers.Dense(1)])

    def make():
        return compiled_model(build, "sgd", "mse")

    if BACKEND == "tensorflow":  # on JAX `fit` forgets what the layer remembers
        assert_as_in_fit(make, x, Y, validation_data=(x, Y))
    assert_carried_by_hand(make, x)
    wanted, resumed = make(), make()
    es.fit(wanted, x, Y, **QUICK)
    es.fit(make(), x, Y, **{**QUICK, "epochs": 1}, model_dir=tmp_path / "run")
    es.fit(resumed, x, Y, **QUICK, model_dir=tmp_path / "run")
    for model in (wanted, resumed):
        assert ops.convert_to_numpy(model.layers[0].states[0]).any()
    held = [[*model.variables, *model.layers[0].states] for model in (wanted, resumed)]
    for one, other in zip(*held, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(one), ops.convert_to_numpy(other))


@pytest.mark.skipif(BACKEND != "torch", reason="others can differentiate it")
def test_a_stateful_layer_that_cannot_be_differentiated_is_refused():
    x = np.random.default_rng(0).normal(size=(24, 3, 2)).astype("float32")

    def build():
        return keras.Sequential([keras.Input(batch_shape=(8, 3, 2)), layers.GRU(4, stateful=True), layers.Dense(1)])

    with pytest.raises(UsageError) as caught:
        es.fit(compiled_model(build, "sgd", "mse"), x, Y, **QUICK)
    assert "stateful" in caught.value.problems[0].reason


def assert_carried_by_hand(make, x):
    """Where nothing is learned, the losses are those of the cell itself, which gets its last state at each batch."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    got = es.fit(model, x, Y, **QUICK).history["loss"]
    rnn, dense = make().layers
    state, losses = [ops.zeros((8, 4))], []
    for begin in [0, 8, 16] * 2:
        for step in range(3):
            output, state = rnn.cell(x[begin : begin + 8, step], state)
        losses.append(np.mean((ops.convert_to_numpy(dense(output)) - Y[begin : begin + 8]) ** 2))
    np.testing.assert_allclose(got, np.reshape(losses, (2, 3)).mean(axis=1), rtol=1e-5)


def test_weights_that_a_layer_assigns_are_assigned():
    """Where nothing is learned, the spectral norm becomes 1. On JAX, `fit` loses what the layer assigns."""

    def build():
        return keras.Sequential([keras.Input((4,)), layers.SpectralNormalization(layers.Dense(3)), layers.Dense(1)])

    model = compiled_model(build, keras.optimizers.SGD(0.0), "mse")
    es.fit(model, X, Y, **{**QUICK, "epochs": 5})
    kernel = ops.convert_to_numpy(model.layers[0].layer.kernel)
    np.testing.assert_allclose(np.linalg.norm(kernel, 2), 1.0, rtol=1e-3)


def test_losses_of_outputs_add_up_to_the_loss():
    """Also with a short last batch, where those of `fit` on TensorFlow do not."""
    inputs = keras.Input((4,))
    model = keras.Model(inputs, [layers.Dense(1, name="a")(inputs), layers.Dense(1, name="b")(inputs)])
    model.compile("sgd", ["mse", "mae"], loss_weights=[1.0, 0.5])
    logs = es.fit(model, X, [Y, Y], **{**QUICK, "batch_size": 9}).history
    np.testing.assert_allclose(np.add(logs["a_loss"], np.multiply(0.5, logs["b_loss"])), logs["loss"], rtol=1e-5)


# -- masks -------------------------------------------------------------------------------------------------------------


def test_metrics_of_a_masked_model_are_those_of_the_positions_that_count():
    """By hand: in training as in evaluation. On JAX, `fit` counts all positions of training, and not of evaluation."""
    random = np.random.default_rng(0)
    words = np.where(np.arange(7) < random.integers(1, 8, 24)[:, None], random.integers(1, 12, (24, 7)), 0)
    labels = random.integers(0, 3, (24, 7))

    def build():
        hidden = [layers.Embedding(12, 4, mask_zero=True), layers.GRU(4, return_sequences=True)]
        return keras.Sequential([keras.Input((7,), dtype="int32"), *hidden, layers.Dense(3, "softmax")])

    model = compiled_model(build, keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", metrics=["accuracy"])
    got = es.fit(model, words, labels, **{**QUICK, "epochs": 1}, validation_data=(words, labels)).history
    right = (model.predict(words, verbose=0).argmax(-1) == labels)[words != 0].mean()
    np.testing.assert_allclose([got["accuracy"], got["val_accuracy"]], [[right], [right]], rtol=1e-5)


def test_a_metric_that_is_nan_ends_no_run(tmp_path):
    def make():
        return compiled_model(dense, "sgd", "mse", metrics=[keras.metrics.PearsonCorrelation()])

    got = es.fit(make(), X, Y, **QUICK, model_dir=tmp_path / "run").history  # of one column there is no correlation
    assert np.isnan(got["pearson_correlation"]).all()
    np.testing.assert_array_equal(got["loss"], es.fit(make(), X, Y, **QUICK).history["loss"])


# -- float16 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [False, True])
def test_loss_scaling_keeps_small_gradients(scaled):
    """The gradient of the first of many sigmoids is too small for float16, unless the loss is scaled."""

    def build():
        options = {"use_bias": False, "kernel_initializer": "ones", "dtype": "mixed_float16"}
        x = keras.Input((1,))
        y = x
        for _ in range(15):
            y = layers.Dense(1, "sigmoid", **options)(y)
        return Half(x, y)

    class Half(keras.Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.dtype_policy = keras.DTypePolicy("mixed_float16")

    model = compiled_model(build, keras.optimizers.SGD(1e9), "mse", auto_scale_loss=scaled)
    es.fit(model, np.ones((1, 1)), np.ones((1, 1)), batch_size=1, verbose=0)
    assert (ops.convert_to_numpy(model.layers[1].kernel)[0, 0] != 1.0) == scaled


@pytest.mark.skipif(BACKEND != "jax", reason="others have such a product")
def test_float16_attention_on_a_cpu_says_what_to_do():
    def build():
        x = keras.Input((3, 4))
        y = layers.MultiHeadAttention(2, 4, dtype="mixed_float16")(x, x)
        return keras.Model(x, layers.Dense(1, dtype="float32")(layers.Flatten()(y)))

    with raises_problem(reason="attention in float16 does not run on JAX on a CPU", remedy="use bfloat16"):
        es.fit(compiled_model(build, "sgd", "mse"), np.ones((8, 3, 4), "float32"), np.ones((8, 1)), **QUICK)


class OwnLog(keras.Model):
    """Returns no `loss`; what it returns is NaN from the third batch on."""

    def build(self, shape):
        self.dense = layers.Dense(1)
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        return {"other": keras.ops.zeros(()), "d_loss": keras.ops.mean(self(data))}


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="Keras calls train_step differently there")
def test_the_step_is_exact_of_a_log_that_is_watched_instead_of_the_loss(caplog):
    x = np.ones((24, 3), "float32")
    x[8:] = np.nan
    model = OwnLog()
    model.compile("sgd")
    es.fit(model, x, batch_size=4, shuffle=False, watch="d_loss", verbose=0)
    assert "d_loss is nan at step 3" in caplog.text
