"""Callbacks: Keras's own, and such as people write."""

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import callbacks, ops, optimizers
from tools.fit_cases import rows
from tools.fit_cases.case import LABELS, X_TEST, Y_TEST, Call, X, Y, call, case, cases, classifier, regression


def _with(*given: Any, optimizer: Any = "sgd", seen: list[Any] | None = None, **kwargs: Any) -> Call:
    model = regression(optimizer, metrics=["mae"])
    return call(
        model, X, Y, callbacks=list(given), validation_data=(X_TEST, Y_TEST), seen=seen, **{"epochs": 4, **kwargs}
    )


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fit_cases_"))


cases(
    "callbacks",
    {
        "EarlyStopping": lambda: _with(callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.5), epochs=6),
        "EarlyStopping, best weights": lambda: _with(
            callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
            optimizer=optimizers.SGD(0.8),
            epochs=6,
        ),
        "EarlyStopping, start_from_epoch": lambda: _with(
            callbacks.EarlyStopping("loss", min_delta=1.0, start_from_epoch=2), epochs=6
        ),
        "ReduceLROnPlateau": lambda: _with(callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=1.0)),
        "LearningRateScheduler": lambda: _with(callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)),
        "TerminateOnNaN": lambda: _with(callbacks.TerminateOnNaN()),
        "TensorBoard": lambda: _with(callbacks.TensorBoard(str(_folder()))),
        "SwapEMAWeights": lambda: _with(
            callbacks.SwapEMAWeights(), optimizer=optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5)
        ),
        "several": lambda: _with(
            callbacks.EarlyStopping("val_loss", patience=3),
            callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, min_delta=1.0),
            callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        ),
    },
)


@case("callbacks", "ModelCheckpoint, the best")
def model_checkpoint():
    file, seen = _folder() / "best.keras", []
    ends = callbacks.LambdaCallback(on_train_end=lambda logs: seen.extend(_numbers(keras.models.load_model(file))))
    return _with(callbacks.ModelCheckpoint(file, "val_loss", save_best_only=True), ends, seen=seen)


@case("callbacks", "ModelCheckpoint, every few batches")
def model_checkpoint_of_batches():
    folder, seen = _folder(), []
    ends = callbacks.LambdaCallback(on_train_end=lambda logs: seen.extend(sorted(f.name for f in folder.iterdir())))
    saves = callbacks.ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3)
    return _with(saves, ends, seen=seen)


@case("callbacks", "CSVLogger")
def csv_logger():
    file, seen = _folder() / "log.csv", []
    ends = callbacks.LambdaCallback(on_train_end=lambda logs: seen.append(file.read_text("utf-8").splitlines()[0]))
    return _with(callbacks.CSVLogger(file), ends, seen=seen)


class Calls(callbacks.Callback):
    """Notes each call, with the names of its logs."""

    def __init__(self, seen: list[Any], batches: bool) -> None:
        super().__init__()
        for name in dir(callbacks.Callback):
            if name.startswith("on_") and (batches or "batch" not in name):
                setattr(self, name, self._noted(seen, name))

    def _noted(self, seen: list[Any], name: str) -> Any:
        def note(number: int | None = None, logs: Any = None) -> None:
            seen.append([name, number, sorted(logs or {})])

        without_number = ("on_train_begin", "on_train_end", "on_test_begin", "on_test_end")
        return (lambda logs=None: note(None, logs)) if name in without_number else note


@case("callbacks", "each call of epochs")
def calls_of_epochs():
    seen: list[Any] = []
    return _with(Calls(seen, batches=False), seen=seen)


@case("callbacks", "each call of batches")
def calls_of_batches():
    seen: list[Any] = []
    return _with(Calls(seen, batches=True), seen=seen)


@case("callbacks", "the logs of each batch")
def logs_of_batches():
    seen: list[Any] = []
    note = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(sorted(logs.items())))
    return _with(note, seen=seen)


@case("callbacks", "the weights after each batch", differs={"jax": rows.EMPTIED})
def weights_of_batches():
    seen: list[Any] = []
    model = regression("adam")
    note = callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.extend(_numbers(model)))
    return call(model, X, Y, callbacks=[note], seen=seen)


class Rates(callbacks.Callback):
    """Sets the rate at every batch, as those that look for a good one do."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets it."""
        self.model.optimizer.learning_rate = 0.01 * (batch + 1)


class Clips(callbacks.Callback):
    """Changes weights after each batch, as those of a GAN's critic do."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Clips them."""
        for variable in self.model.trainable_variables:
            variable.assign(ops.clip(variable, -0.3, 0.3))


class Stops(callbacks.Callback):
    """Stops in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops after the third batch."""
        self.model.stop_training = batch == 2


class Adds(callbacks.Callback):
    """Adds a log of its own, which ends up in the history."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds it."""
        logs["mine"] = float(epoch)


class Scores(callbacks.Callback):
    """Predicts at the end of each epoch."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self._seen = seen

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the mean prediction."""
        self._seen.append(self.model.predict(X_TEST, verbose=0).ravel().tolist())


class Freezes(callbacks.Callback):
    """Sets weights at the beginning of each epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the last bias."""
        self.model.layers[-1].bias.assign(ops.ones((1,)) * epoch)


cases(
    "callbacks",
    {
        "a rate for each batch": lambda: _with(Rates()),
        "weights clipped after each batch": lambda: _with(Clips()),
        "stop in an epoch": lambda: _with(Stops()),
        "a log of its own": lambda: _with(Adds()),
        "weights set at each epoch": lambda: _with(Freezes()),
    },
)


@case("callbacks", "predictions at each epoch")
def predictions():
    seen: list[Any] = []
    return _with(Scores(seen), seen=seen)


@case("callbacks", "accuracy that stops training")
def stops_at_accuracy():
    class Enough(callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = logs["accuracy"] > 0.0

    return call(classifier(), X, LABELS, callbacks=[Enough()], epochs=4)


@case("callbacks", "a CallbackList")
def callback_list():
    model = regression()
    stops = callbacks.EarlyStopping("loss", min_delta=9.0)
    listed = callbacks.CallbackList([stops], add_history=True, model=model, epochs=4)
    return call(model, X, Y, callbacks=listed, epochs=4)


def _numbers(model: keras.Model) -> list[np.ndarray]:
    return [np.array(weights) for weights in model.get_weights()]
