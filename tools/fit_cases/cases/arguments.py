"""The arguments of `fit`, and how calls follow each other."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from tools.fit_cases import rows
from tools.fit_cases.case import (
    LABELS,
    LABELS_TEST,
    X_TEST,
    Y_TEST,
    Call,
    X,
    Y,
    call,
    case,
    cases,
    classifier,
    regression,
)

WEIGHTS = np.linspace(0.1, 2.0, len(X)).astype("float32")


def _regression(*data: Any, **kwargs: Any) -> Callable[[], Call]:
    return lambda: call(regression(metrics=["mae"]), *(data or (X, Y)), **kwargs)


def _classifier(*data: Any, **kwargs: Any) -> Callable[[], Call]:
    return lambda: call(classifier(), *(data or (X, LABELS)), **kwargs)


cases(
    "arguments",
    {
        "one epoch": _regression(epochs=1),
        "five epochs": _regression(epochs=5),
        "initial_epoch": _regression(epochs=4, initial_epoch=2),
        "batch_size that leaves a short batch": _regression(batch_size=9),
        "batch_size 1": _regression(batch_size=1),
        "batch_size larger than the data": _regression(batch_size=100),
        "batch_size by default": _regression(batch_size=None),
        "steps_per_epoch": _regression(steps_per_epoch=3, epochs=4),
        "steps_per_epoch that divides the data": _regression(steps_per_epoch=4, batch_size=None),
        "steps_per_epoch larger than the data": _regression(steps_per_epoch=7, epochs=3),
        "verbose=2": _regression(verbose=2),
        "validation_split": _regression(validation_split=0.25),
        "validation_data": _regression(validation_data=(X_TEST, Y_TEST)),
        "validation_data with weights": _regression(validation_data=(X_TEST, Y_TEST, WEIGHTS[:12])),
        "validation_batch_size": _regression(validation_data=(X_TEST, Y_TEST), validation_batch_size=5),
        "validation_steps": _regression(validation_data=(X_TEST, Y_TEST), validation_steps=1),
        "validation_freq, a number": _regression(validation_split=0.25, validation_freq=2, epochs=5),
        "validation_freq, a list": _regression(validation_split=0.25, validation_freq=[1, 4], epochs=4),
        "validation_split and steps_per_epoch": _regression(validation_split=0.25, steps_per_epoch=2, epochs=3),
        "sample_weight": _regression(sample_weight=WEIGHTS),
        "sample_weight and validation_split": _regression(sample_weight=WEIGHTS, validation_split=0.25),
        "sample_weight with zeros": _regression(sample_weight=(WEIGHTS > 1).astype("float32")),
        "class_weight": _classifier(class_weight={0: 1.0, 1: 2.0, 2: 0.5}),
        "class_weight of one class": _classifier(class_weight={2: 5.0}),
        "class_weight and validation_data": _classifier(
            class_weight={0: 1.0, 1: 2.0, 2: 0.5}, validation_data=(X_TEST, LABELS_TEST)
        ),
        "everything at once": _classifier(
            class_weight={0: 1.0, 1: 2.0, 2: 0.5},
            validation_data=(X_TEST, LABELS_TEST),
            validation_batch_size=5,
            validation_freq=2,
            steps_per_epoch=4,
            epochs=5,
        ),
    },
)
cases(
    "arguments",
    {"initial_epoch and steps_per_epoch": _regression(initial_epoch=1, steps_per_epoch=4, epochs=4)},
    differs=rows.INITIAL_EPOCH,
)

cases("arguments", {"shuffle=True": _regression(shuffle=True)}, differs=rows.ORDER)
cases("arguments", {"shuffle=True, one batch": _regression(shuffle=True, batch_size=40, epochs=1)}, differs=rows.ORDER)
cases(
    "arguments",
    {"sample_weight and class_weight": _classifier(sample_weight=WEIGHTS, class_weight={0: 2.0})},
    differs=rows.CLASS_WEIGHT,
)


@case("arguments", "keras.config.set_max_epochs")
def max_epochs():
    keras.config.set_max_epochs(2)  # each contender starts without limits
    return call(regression(), X, Y, epochs=4)


@case("arguments", "keras.config.set_max_steps_per_epoch")
def max_steps():
    keras.config.set_max_steps_per_epoch(3)
    return call(regression(), X, Y)


# -- one call after another --------------------------------------------------------------------------------------------


@case("calls", "a second call continues")
def second_call():
    made = call(regression("adam"), X, Y)
    made.before = lambda fit: fit(made.model, X, Y, **made.kwargs)
    return made


@case("calls", "a second call with initial_epoch")
def second_call_with_initial_epoch():
    made = call(regression("adam"), X, Y, epochs=4, initial_epoch=2)
    made.before = lambda fit: fit(made.model, X, Y, **{**made.kwargs, "epochs": 2, "initial_epoch": 0})
    return made


@case("calls", "compiled again in between")
def compiled_again():
    made = call(regression("adam"), X, Y)

    def earlier(fit: Any) -> None:
        fit(made.model, X, Y, **made.kwargs)
        made.model.compile("sgd", "mae", metrics=["mse"])

    made.before = earlier
    return made


@case("calls", "other data in the second call")
def other_data():
    made = call(classifier(), X_TEST, LABELS_TEST, batch_size=5)
    made.before = lambda fit: fit(made.model, X, LABELS, **made.kwargs)
    return made


@case("calls", "evaluated and used in between")
def evaluated_between():
    made = call(regression(metrics=["mae"]), X, Y)

    def earlier(fit: Any) -> None:
        fit(made.model, X, Y, **made.kwargs)
        made.seen.append(made.model.evaluate(X_TEST, Y_TEST, verbose=0))
        made.seen.append(made.model.predict(X_TEST, verbose=0).tolist())

    made.before = earlier
    return made


@case("calls", "the rate changed in between")
def rate_between():
    made = call(regression("adam"), X, Y)

    def earlier(fit: Any) -> None:
        fit(made.model, X, Y, **made.kwargs)
        made.model.optimizer.learning_rate = 0.1

    made.before = earlier
    return made


@case("calls", "one layer frozen in between")
def frozen_between():
    made = call(regression("sgd"), X, Y)

    def earlier(fit: Any) -> None:
        fit(made.model, X, Y, **made.kwargs)
        made.model.layers[0].trainable = False
        made.model.compile("sgd", "mse")

    made.before = earlier
    return made
