"""`everstep.fit` as a call inside a larger program: repeated, and without side effects on the process."""

import gc
import os
import random
import re
import signal
import subprocess
import sys
import threading
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import everstep as es
from everstep.errors import TrainingError, UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32") + (X[:, 0] > 1)


def norm_classifier(**settings):
    keras.utils.set_random_seed(0)
    parts = [keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.2), layers.Softmax()]
    model = keras.Sequential(parts)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], **settings)
    return model


def dense_classifier():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def engine(model):
    return vars(model)["_everstep_kept"].engine


def fit_history(model, **given):
    return es.fit(model, X, Y, **{"batch_size": 8, "verbose": 0, **given})


# -- again and again -------------------------------------------------------------------------------------------------


@pytest.fixture
def programs(monkeypatch):
    """The names of what is traced, lowered or compiled while the test runs."""
    names = []
    if keras.backend.backend() == "jax":
        import jax

        def listen(event, seconds, fun_name="", **details):
            if "/compile/" in event:
                names.append(f"{event.rpartition('/')[2]} {fun_name}")

        jax.monitoring.register_event_duration_secs_listener(listen)
        yield names
        jax.monitoring.unregister_event_duration_listener(listen)
    elif keras.backend.backend() == "tensorflow":
        from tensorflow.python.framework.func_graph import FuncGraph

        original = FuncGraph.__init__
        monkeypatch.setattr(
            FuncGraph,
            "__init__",
            lambda self, name, *args, **more: (names.append(name), original(self, name, *args, **more))[1],
        )
        yield names
    else:
        pytest.skip("nothing is traced or compiled")


def test_a_second_call_traces_nothing_outside_the_steps_either(programs):
    """Not the reading of logs, nor resets, copies of the state, the evaluation, or counting operations."""
    model = norm_classifier()
    fit_history(model, validation_split=0.2, verbose=1)
    assert programs
    for given in ({}, {"epochs": 2}):
        programs.clear()
        fit_history(model, validation_split=0.2, verbose=1, **given)
        assert programs == []


def test_a_second_call_compiles_nothing():
    model = norm_classifier()
    fit_history(model, validation_split=0.2)
    first, compiled = engine(model), engine(model).compilations
    for given in ({"validation_split": 0.2}, {"validation_split": 0.2, "epochs": 2, "seed": 3}):
        fit_history(model, **given)
        assert engine(model) is first
        assert engine(model).compilations == compiled


def test_an_engine_that_can_evaluate_also_trains_alone():
    model = norm_classifier()
    fit_history(model, validation_data=(X, Y))
    first = engine(model)
    fit_history(model)
    assert engine(model) is first


def test_calls_in_a_row_are_one_training():
    """The kept engine has the weights, slots and sums that it has to have."""
    one, two = norm_classifier(), norm_classifier()
    fit_history(one, epochs=3, seed=0, shuffle=False)
    for _ in range(3):
        history = fit_history(two, seed=0, shuffle=False)
    assert [np.array_equal(*pair) for pair in zip(one.get_weights(), two.get_weights(), strict=True)] == [True] * 6
    assert history.history["loss"] == one.history.history["loss"][-1:]


def test_keras_may_train_in_between():
    one, two = dense_classifier(), dense_classifier()
    for model, twice in ((one, one.fit), (two, lambda *a, **k: es.fit(two, *a, **k))):
        fit_history(model, shuffle=False)
        twice(X, Y, batch_size=8, shuffle=False, verbose=0)
        fit_history(model, shuffle=False)
    for wanted, found in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def freeze(model):
    model.layers[0].trainable = False


def recompile(model):
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


def replace_optimizer(model):
    model.optimizer = keras.optimizers.SGD(0.1)


def replace_rate(model):
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5)


def change_layer(model):
    model.layers[2].rate = 0.7


@pytest.mark.parametrize(
    "change",
    [
        recompile,
        *(pytest.param(one, marks=pytest.mark.full) for one in (freeze, replace_optimizer, replace_rate, change_layer)),
    ],
)
def test_what_has_changed_is_used(change):
    model, twin = norm_classifier(), norm_classifier()
    fit_history(model, seed=0)
    first = engine(model)
    change(model)
    frozen = model.layers[0].get_weights()[0].copy()
    fit_history(model, seed=0)
    assert engine(model) is not first
    if change is freeze:
        assert np.array_equal(frozen, model.layers[0].get_weights()[0])
    # The same as in a process that has never kept an engine.
    fit_history(twin, seed=0)
    del vars(twin)["_everstep_kept"]
    change(twin)
    fit_history(twin, seed=0)
    assert np.array_equal(twin.layers[0].get_weights()[1], model.layers[0].get_weights()[1])


@pytest.mark.full
@pytest.mark.parametrize("given", [{"batch_size": 5}, {"validation_data": (X, Y)}, {"class_weight": {0: 2.0}}])
def test_other_batches_build_another(given):
    model = norm_classifier()
    fit_history(model)
    first = engine(model)
    fit_history(model, **given)
    assert engine(model) is not first


def test_an_error_leaves_no_engine_behind():
    model = norm_classifier()
    fit_history(model)
    with pytest.raises(ZeroDivisionError):
        fit_history(model, callbacks=keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: 1 / 0))
    assert "_everstep_kept" not in vars(model)
    fit_history(model)


def test_nothing_is_kept_of_a_model_that_is_gone():
    gc.freeze()  # what other tests have left need not be looked through
    model, x = norm_classifier(), X.copy()
    es.fit(model, x, Y, verbose=0)
    model, gone, data = None, weakref.ref(model), weakref.ref(x)
    x = None
    gc.collect()
    assert gone() is None
    assert data() is None


def test_data_is_not_kept_with_the_model():
    gc.freeze()
    model, x = norm_classifier(), X.copy()
    es.fit(model, x, Y, verbose=0)
    data, x = weakref.ref(x), None
    gc.collect()
    assert data() is None


# -- random numbers --------------------------------------------------------------------------------------------------


def order(**given):
    """Returns in which order one epoch saw the samples."""
    seen = []

    model = keras.Sequential([keras.Input((1,)), layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.arange(12, dtype="float32")[:, None]
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))
    es.fit(model, x, x, batch_size=1, verbose=0, callbacks=watch, **given)
    return [round(value, 3) for value in seen]


def test_calls_shuffle_differently_and_a_seeded_program_repeats_itself():
    keras.utils.set_random_seed(5)
    first = [order(), order()]
    keras.utils.set_random_seed(5)
    assert [order(), order()] == first
    assert first[0] != first[1]
    assert order(seed=1) == order(seed=1)


@pytest.mark.full
def test_a_run_that_resumes_has_the_seed_it_was_started_with(tmp_path):
    keras.utils.set_random_seed(1)
    fit_history(norm_classifier(), model_dir=tmp_path / "two", epochs=1)
    keras.utils.set_random_seed(2)
    resumed = fit_history(norm_classifier(), model_dir=tmp_path / "two", epochs=2)
    keras.utils.set_random_seed(1)
    assert fit_history(norm_classifier(), model_dir=tmp_path / "one", epochs=2).history == resumed.history


def test_global_random_states_stay_the_users(tmp_path):
    model = norm_classifier()
    keras.utils.set_random_seed(7)
    keras.random.normal((1,))
    wanted = random.random(), np.random.rand(), keras.ops.convert_to_numpy(keras.random.normal((2,))).tolist()
    keras.utils.set_random_seed(7)
    keras.random.normal((1,))
    fit_history(model, epochs=2, validation_split=0.2)
    fit_history(model, epochs=2, validation_split=0.2, seed=3)
    fit_history(model, model_dir=tmp_path)
    assert (
        random.random(),
        np.random.rand(),
        keras.ops.convert_to_numpy(keras.random.normal((2,))).tolist(),
    ) == wanted


def test_callbacks_draw_from_the_users_generators():
    drawn = []
    draw = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: drawn.append(np.random.rand()))
    model = norm_classifier()
    np.random.seed(3)
    wanted = np.random.rand(3).tolist()
    np.random.seed(3)
    fit_history(model, epochs=2, callbacks=draw)
    assert [*drawn, np.random.rand()] == wanted


# -- the process -----------------------------------------------------------------------------------------------------


def test_operations_are_deterministic_only_inside():
    inside = []
    allow_chance()  # other tests of this process may have started runs
    fit_history(
        norm_classifier(),
        callbacks=keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: inside.append(deterministic())),
    )
    assert inside == [keras.backend.backend() != "jax"]
    assert not deterministic()


def allow_chance():
    if keras.backend.backend() == "tensorflow":
        from tensorflow.python.framework import config

        config.disable_op_determinism()
    if keras.backend.backend() == "torch":
        import torch

        torch.use_deterministic_algorithms(False)


def deterministic():
    if keras.backend.backend() == "tensorflow":
        from tensorflow.python.framework import config

        return config.is_op_determinism_enabled()
    if keras.backend.backend() == "torch":
        import torch

        return torch.are_deterministic_algorithms_enabled()
    return False


PROGRAM = """
import os, sys
import keras, numpy as np
before = dict(os.environ)
import everstep
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
class Batches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None): pass
    def on_test_batch_end(self, batch, logs=None): pass
data = np.ones((8, 4)), np.ones((8, 2))
print("START", flush=True); print("START", file=sys.stderr, flush=True)
everstep.fit(model, *data, validation_data=data, callbacks=Batches(), verbose=0)
print("tensorflow" in sys.modules, {k: v for k, v in os.environ.items() if before.get(k) != v})
if len(sys.argv) > 1:
    everstep.fit(model, *data, validation_data=data, callbacks=Batches(), verbose=0, model_dir=sys.argv[1])
"""


def test_nothing_is_printed_nor_imported_nor_set(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("START\n")[2] == f"{keras.backend.backend() == 'tensorflow'} {{}}\n"
    lines = done.stderr.partition("START\n")[2].splitlines()
    assert [line for line in lines if not IMPORTING.match(line)] == []


IMPORTING = re.compile(r"[IWE]0000 |WARNING: All log messages before absl|To enable the following instructions")
"""What TensorFlow prints when it is imported, as an export on JAX does."""


# -- stopping --------------------------------------------------------------------------------------------------------


def test_another_thread_may_stop_it():
    model, ended = norm_classifier(), []

    class Waiting(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                thread = threading.Thread(target=setattr, args=(model, "stop_training", True))
                thread.start()
                thread.join()

        def on_epoch_end(self, epoch, logs=None):
            ended.append(epoch)

    assert fit_history(model, epochs=5, callbacks=Waiting()).epoch == [0, 1]
    assert ended == [0, 1]


def test_an_evaluation_may_be_stopped():
    class Short(keras.callbacks.Callback):
        seen = 0

        def on_test_batch_end(self, batch, logs=None):
            self.seen += 1
            self.model.stop_evaluating = batch == 1

    short = Short()
    fit_history(norm_classifier(), validation_data=(X, Y), callbacks=short)
    assert short.seen == 2


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="elsewhere a step's Python runs only when it is compiled"
)
def test_a_step_may_stop_it():
    class Stopping(keras.Model):
        steps = 0

        def train_step(self, data):
            self.steps += 1
            self.stop_training = self.steps == self.last
            return super().train_step(data)

    inputs = keras.Input((4,))
    model = Stopping(inputs, layers.Dense(3, "softmax")(inputs))
    model.last = 10**9
    model.compile("sgd", "sparse_categorical_crossentropy")
    fit_history(model)
    model.last = model.steps + 3
    fit_history(model)
    assert model.steps == model.last


def ctrl_c(epoch, logs):
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("verbose", [0, 1])
def test_ctrl_c_says_once_what_is_saved(tmp_path, capfd, verbose):
    watch = keras.callbacks.LambdaCallback(on_epoch_end=ctrl_c)
    with pytest.raises(KeyboardInterrupt) as ended:
        fit_history(norm_classifier(), epochs=3, model_dir=tmp_path, verbose=verbose, callbacks=watch)
    message = "SIGINT: the state is saved at step 7; the same command resumes from there"
    printed = capfd.readouterr().err
    assert (printed + str(ended.value)).count(message) == 1
    assert bool(str(ended.value)) == (verbose == 0)  # with verbose=0 only the exception contains it
    assert ended.value.__cause__ is None
    assert ended.value.__suppress_context__
    assert ended.value.history.epoch == [0]


def test_ctrl_c_without_a_directory_says_that_nothing_is_kept():
    with pytest.raises(KeyboardInterrupt, match="nothing is kept without model_dir"):
        fit_history(norm_classifier(), epochs=3, callbacks=keras.callbacks.LambdaCallback(on_epoch_end=ctrl_c))


# -- counts ----------------------------------------------------------------------------------------------------------


class Hooks(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("end", batch, *sorted(logs)))

    def on_test_batch_begin(self, batch, logs=None):
        self.seen.append(("test begin", batch))

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(("test end", batch, *sorted(logs)))


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras does not have it on PyTorch")
@pytest.mark.parametrize("given", [{}, {"validation_steps": 3}])
def test_hooks_are_called_as_often_as_keras_calls_them(given):
    seen = []
    for fit in (keras.Model.fit, es.fit):
        hooks = Hooks()
        fit(
            *(norm_classifier(steps_per_execution=3), X, Y, 8, 2, 0, hooks),
            validation_data=(X[:30], Y[:30]),
            **given,
        )
        seen.append(hooks.seen)
    assert sorted(seen[1]) == sorted(seen[0])  # Keras calls the ends from other threads, in any order


def test_the_limits_of_keras_hold():
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    try:
        model = norm_classifier()
        with pytest.warns(UserWarning, match="Limiting"):
            history = fit_history(model, epochs=4, validation_data=(X, Y))
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    assert history.epoch == [0, 1]
    assert int(model.optimizer.iterations) == 6


# -- errors ----------------------------------------------------------------------------------------------------------


def test_what_was_trained_before_an_error_is_known(tmp_path):
    bad = X.copy()
    model = norm_classifier()

    def spoil(epoch, logs):
        if epoch == 1:
            model.layers[0].set_weights([np.full((4, 3), np.nan), np.zeros(3)])

    with pytest.raises(TrainingError) as failed:
        es.fit(
            model,
            bad,
            Y,
            epochs=4,
            model_dir=tmp_path,
            verbose=0,
            callbacks=keras.callbacks.LambdaCallback(on_epoch_end=spoil),
        )
    assert failed.value.history.epoch[:2] == [0, 1]
    assert np.isfinite(failed.value.history.history["loss"][0])


@pytest.mark.parametrize(
    ("x", "y", "loss", "fields"),
    [
        (
            X[:, :3],
            Y,
            "sparse_categorical_crossentropy",
            {"key": "x", "reason": r"the samples have the shape \(3,\), but the model was built for \(4,\)"},
        ),
        (
            X,
            np.eye(3)[Y],
            "sparse_categorical_crossentropy",
            {"key": "y", "reason": "the labels have 3 numbers for each sample, as one-hot labels have"},
        ),
        (X, np.zeros((50, 7)), "mse", {"reason": "model and data do not fit together: .* outputs .None, 3."}),
    ],
)
def test_a_misfit_of_model_and_data_is_one_line(x, y, loss, fields, monkeypatch):
    monkeypatch.setenv("EVERSTEP_TRACEBACK", "0")
    model = norm_classifier()
    model.compile("sgd", loss)
    with raises_problem(**fields) as refused:
        es.fit(model, x, y, verbose=0)
    assert "\x1b" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None
    monkeypatch.setenv("EVERSTEP_TRACEBACK", "1")
    with raises_problem(**fields) as refused:
        es.fit(model, x, y, verbose=0)
    assert refused.value.__cause__ is not None


def test_errors_of_the_users_own_code_stay_as_they_are():
    class Own(keras.layers.Layer):
        def call(self, x):
            raise ValueError("mine")

    model = keras.Sequential([Own(), layers.Dense(3)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="mine") as failed:
        es.fit(model, X, np.zeros((50, 3)), verbose=0)
    assert not isinstance(failed.value, UsageError)


def test_a_monitor_that_nobody_logs():
    stop = keras.callbacks.EarlyStopping(monitor="val_los")
    with raises_problem(key="callbacks", reason="monitor='val_los'", remedy="did you mean 'val_loss'"):
        fit_history(norm_classifier(), validation_split=0.2, callbacks=stop)
