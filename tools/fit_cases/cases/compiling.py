"""What a model is compiled with: losses, metrics, optimizers, and the other arguments of `compile`."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import losses, metrics, ops, optimizers
from keras.optimizers import schedules
from tools.fit_cases import rows
from tools.fit_cases.case import (
    BINARY,
    CLASSES,
    ONE_HOT,
    SAMPLES,
    WIDTH,
    Call,
    X,
    Y,
    call,
    case,
    cases,
    classifier,
    compiled,
    labels,
    numbers,
    regression,
    stack,
)

# -- losses ------------------------------------------------------------------------------------------------------------

POSITIVE, SIGNS = np.abs(Y) + 0.1, np.sign(Y)


def _with_loss(loss: Any, y: Any, activation: str | None = None, **kwargs: Any) -> Callable[[], Call]:
    def made() -> Call:
        model = stack((WIDTH,), keras.layers.Dense(y.shape[-1] if y.ndim > 1 else CLASSES, activation))
        return call(compiled(model, loss=loss() if isinstance(loss, type) else loss), X, y, **kwargs)

    return made


def _quartic(y_true: Any, y_pred: Any) -> Any:
    return ops.mean((y_true - y_pred) ** 4, axis=-1)


class Quantile(losses.Loss):
    """A loss of one's own."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns a number for each sample."""
        error = y_true - y_pred
        return ops.mean(ops.maximum(0.8 * error, -0.2 * error), axis=-1)


cases(
    "losses",
    {
        "mean squared error": _with_loss("mse", Y),
        "mean absolute error": _with_loss("mae", Y),
        "mean absolute percentage error": _with_loss("mape", POSITIVE),
        "mean squared logarithmic error": _with_loss("msle", POSITIVE, "softplus"),
        "Huber": _with_loss(losses.Huber(0.5), Y),
        "log-cosh": _with_loss(losses.LogCosh, Y),
        "Poisson": _with_loss("poisson", POSITIVE, "softplus"),
        "cosine similarity": _with_loss(losses.CosineSimilarity, numbers(SAMPLES, 3)),
        "Kullback-Leibler": _with_loss("kl_divergence", ONE_HOT, "softmax"),
        "hinge": _with_loss("hinge", SIGNS),
        "categorical hinge": _with_loss("categorical_hinge", ONE_HOT),
        "binary cross-entropy": _with_loss("binary_crossentropy", BINARY, "sigmoid"),
        "binary cross-entropy of logits": _with_loss(losses.BinaryCrossentropy(from_logits=True), BINARY),
        "binary focal": _with_loss(losses.BinaryFocalCrossentropy, BINARY, "sigmoid"),
        "categorical cross-entropy, smoothed": _with_loss(
            losses.CategoricalCrossentropy(label_smoothing=0.1), ONE_HOT, "softmax"
        ),
        "categorical focal": _with_loss("categorical_focal_crossentropy", ONE_HOT, "softmax"),
        "sparse cross-entropy, a class ignored": _with_loss(
            losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), labels(SAMPLES, CLASSES)
        ),
        "Dice": _with_loss("dice", ONE_HOT, "softmax"),
        "Tversky": _with_loss(losses.Tversky, ONE_HOT, "softmax"),
        "a function": _with_loss(_quartic, Y),
        "a class": _with_loss(Quantile(), Y),
        "sum over the batch": _with_loss(losses.MeanSquaredError(reduction="sum"), Y),
        "mean with sample weights": _with_loss(
            losses.MeanSquaredError(reduction="mean_with_sample_weight"), Y, sample_weight=np.abs(Y[:, 0])
        ),
    },
)


@case("losses", "CTC")
def connectionist():
    model = stack((8, 4), keras.layers.Dense(5))
    return call(compiled(model, loss=losses.CTC()), numbers(SAMPLES, 8, 4), 1 + np.tile(labels(SAMPLES, 4)[:, None], 3))


@case("losses", "none, a layer has one")
def loss_of_a_layer():
    from tools.fit_cases.cases.networks import Centred

    model = stack((WIDTH,), Centred(3))
    model.compile("adam")
    return call(model, X)


@case("losses", "loss weights that are lists")
def loss_weights():
    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    return call(compiled(model, loss=["mse", "mae"], loss_weights=[0.7, 0.3]), X, [Y, -Y])


# -- metrics -----------------------------------------------------------------------------------------------------------


def _with_metrics(*made: Callable[[], Any], y: Any = BINARY, units: int = 1, activation: str = "sigmoid") -> Any:
    def build() -> Call:
        model = stack((WIDTH,), keras.layers.Dense(units, activation))
        loss = "mse" if activation == "linear" else "binary_crossentropy"
        compiled(model, loss=loss, metrics=[one() for one in made])
        return call(model, X, y, validation_split=0.25)

    return build


def _several(metric: Callable[[], Any]) -> Any:
    return _with_metrics(metric, y=ONE_HOT, units=CLASSES, activation="softmax")


class Largest(metrics.Metric):
    """A metric of one's own that is no mean."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Keeps the largest error."""
        self.value.assign(ops.maximum(self.value, ops.max(ops.abs(ops.cast(y_true, "float32") - y_pred))))

    def result(self) -> Any:
        """Returns it."""
        return self.value + 0.0


def worst(y_true: Any, y_pred: Any) -> Any:
    """A metric that is a function."""
    return ops.max(ops.abs(y_true - y_pred), axis=-1)


cases(
    "metrics",
    {
        "binary accuracy": _with_metrics(lambda: "accuracy"),
        "AUC": _with_metrics(metrics.AUC),
        "precision and recall": _with_metrics(metrics.Precision, metrics.Recall),
        "precision at recall": _with_metrics(lambda: metrics.PrecisionAtRecall(0.5)),
        "binary IoU": _with_metrics(metrics.BinaryIoU),
        "categorical accuracy": _several(lambda: "accuracy"),
        "top 2 accuracy": _several(lambda: metrics.TopKCategoricalAccuracy(2)),
        "mean IoU": _several(lambda: metrics.OneHotMeanIoU(CLASSES)),
        "F1, macro": _several(lambda: metrics.F1Score("macro")),
        "F1 of each class": _several(metrics.F1Score),
        "root mean squared error, R2": _with_metrics(
            metrics.RootMeanSquaredError, metrics.R2Score, y=Y, activation="linear"
        ),
        "cosine similarity": _with_metrics(metrics.CosineSimilarity, y=Y, activation="linear"),
        "correlation of columns": _with_metrics(
            metrics.PearsonCorrelation, y=numbers(SAMPLES, 3), units=3, activation="linear"
        ),
        "correlation of one column, which is NaN": _with_metrics(metrics.PearsonCorrelation, y=Y, activation="linear"),
        "a class": _with_metrics(Largest),
        "a function": _with_metrics(lambda: worst),
    },
)


cases(
    "metrics",
    {"true and false positives": _with_metrics(metrics.TruePositives, metrics.FalsePositives)},
    differs={"torch": rows.COUNTS},
)


@case("metrics", "weighted")
def weighted_metrics():
    model = regression(metrics=["mae"], weighted_metrics=["mae", "mse"])
    return call(model, X, Y, sample_weight=np.abs(Y[:, 0]), validation_split=0.25)


@case("metrics", "by output", differs={"tensorflow": rows.OUTPUTS})
def metrics_by_output():
    inputs = keras.Input((WIDTH,))
    outputs = {"a": keras.layers.Dense(1)(inputs), "b": keras.layers.Dense(CLASSES, "softmax")(inputs)}
    loss = {"a": "mse", "b": "sparse_categorical_crossentropy"}
    model = compiled(keras.Model(inputs, outputs), loss=loss, metrics={"a": ["mae", "mape"], "b": "accuracy"})
    return call(model, X, {"a": Y, "b": labels(SAMPLES, CLASSES)}, validation_split=0.25)


# -- optimizers --------------------------------------------------------------------------------------------------------


def _with_optimizer(made: Callable[[], Any]) -> Callable[[], Call]:
    return lambda: call(classifier(made()), X, labels(SAMPLES, CLASSES), epochs=3)


class Halving(schedules.LearningRateSchedule):
    """A schedule of one's own."""

    def __call__(self, step: Any) -> Any:
        """Returns the rate at a step."""
        return 0.1 / (1.0 + ops.cast(step, "float32"))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(0.1),
    "SGD, momentum": lambda: optimizers.SGD(0.1, momentum=0.9),
    "SGD, Nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda: optimizers.RMSprop(0.01),
    "RMSprop, centered": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam": lambda: optimizers.Adam(0.01),
    "Adam, AMSGrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Adagrad": lambda: optimizers.Adagrad(0.1),
    "Adadelta": lambda: optimizers.Adadelta(1.0),
    "Ftrl": lambda: optimizers.Ftrl(0.1),
    "Lion": lambda: optimizers.Lion(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "LAMB": lambda: optimizers.Lamb(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "loss scaling": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=256.0),
    "gradients clipped by norm": lambda: optimizers.Adam(0.01, clipnorm=0.1),
    "gradients clipped by value": lambda: optimizers.Adam(0.01, clipvalue=0.01),
    "gradients clipped by their global norm": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "accumulated gradients": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "averaged weights": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8),
    "averaged weights, taken over": lambda: optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4
    ),
    "exponential decay": lambda: optimizers.Adam(schedules.ExponentialDecay(0.05, 3, 0.5)),
    "cosine with warmup": lambda: optimizers.Adam(schedules.CosineDecay(0.0, 8, warmup_target=0.05, warmup_steps=4)),
    "piecewise constant": lambda: optimizers.SGD(schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01])),
    "polynomial decay, cycling": lambda: optimizers.SGD(schedules.PolynomialDecay(0.1, 6, cycle=True)),
    "a schedule of one's own": lambda: optimizers.SGD(Halving()),
    "a rate that is a function": lambda: optimizers.SGD(lambda: 0.05),
}

cases("optimizers", {name: _with_optimizer(made) for name, made in OPTIMIZERS.items()})


# -- other arguments of compile ----------------------------------------------------------------------------------------

cases(
    "compile",
    {
        "run_eagerly": lambda: call(classifier(run_eagerly=True), X, labels(SAMPLES, CLASSES)),
        "jit_compile=True": lambda: call(classifier(jit_compile=True), X, labels(SAMPLES, CLASSES)),
        "jit_compile=False": lambda: call(classifier(jit_compile=False), X, labels(SAMPLES, CLASSES)),
        "auto_scale_loss=False": lambda: call(classifier(auto_scale_loss=False), X, labels(SAMPLES, CLASSES)),
    },
)


@case("compile", "steps_per_execution", backends=("jax", "tensorflow"))
def several_steps_per_execution():
    return call(classifier(steps_per_execution=2), X, labels(SAMPLES, CLASSES), batch_size=10, validation_split=0.25)


@case("compile", "mixed_float16, the whole model")
def mixed_float16():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return call(regression(), X, Y)
    finally:
        keras.config.set_dtype_policy("float32")
