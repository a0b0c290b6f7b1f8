"""What callbacks and actions remember: through JSON and arrays into fresh ones, which then decide as the old ones."""

import collections
import json
import logging
import math
import random

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import callbacks

from everstep.loop.action_hook import Actions
from everstep.loop.callback_state import CallbackState, owners
from everstep.loop.controller import Controller
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.loop.plain_values import NotPlainError, decode, encode
from everstep.loop.schedule import EpochSchedule
from everstep.testing.problems import raises_problem
from loop.samples import MemoryCheckpointer, SavedCounter

# Falls, rises, falls by less than the smallest step that counts, falls, stays.
LOSSES = [1.0, 0.8, 0.9, 0.795, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]


def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


class Training:
    """Calls callbacks as a training of so many epochs would; each epoch makes the bias its number."""

    def __init__(self, watching, of=None):
        self.model = of or model()
        self.list = callbacks.CallbackList(watching, model=self.model, epochs=len(LOSSES), steps=1, verbose=0)
        self.state = CallbackState(self.list.callbacks)
        self.seen = []

    def begin(self, saved=None):
        self.model.stop_training = False
        with self.state.resuming():
            self.list.on_train_begin()
        self.state.observe()
        if saved is not None:
            arrays, meta = saved
            self.state.restore(arrays, json.loads(json.dumps(meta)))
        return self

    def run(self, epochs):
        for epoch in epochs:
            self.list.on_epoch_begin(epoch)
            self.model.layers[0].bias.assign([float(epoch)])
            self.list.on_train_batch_begin(0)
            self.list.on_train_batch_end(0, {"loss": LOSSES[epoch]})
            self.list.on_epoch_end(epoch, {"loss": LOSSES[epoch]})
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            self.seen.append((epoch, rate, self.model.stop_training))
        return self


class Picky(callbacks.EarlyStopping):
    """Keras's own with something added."""

    def __init__(self):
        super().__init__("loss", min_delta=0.01, patience=5)
        self.rises, self.former = 0, None

    def on_epoch_end(self, epoch, logs=None):
        self.rises += self.former is not None and logs["loss"] > self.former
        self.former = logs["loss"]
        super().on_epoch_end(epoch, logs)


MAKE = {
    "EarlyStopping": lambda path: callbacks.EarlyStopping("loss", 0.01, patience=5, restore_best_weights=True),
    "ReduceLROnPlateau": lambda path: callbacks.ReduceLROnPlateau("loss", 0.5, patience=2, min_delta=0.01, cooldown=2),
    "ModelCheckpoint": lambda path: callbacks.ModelCheckpoint(
        path / "{epoch}.weights.h5", "loss", save_best_only=True, save_weights_only=True
    ),
    "every third batch": lambda path: callbacks.ModelCheckpoint(
        path / "{epoch}.weights.h5", save_weights_only=True, save_freq=3
    ),
    "History": lambda path: callbacks.History(),
    "TerminateOnNaN": lambda path: callbacks.TerminateOnNaN(),
    "LambdaCallback": lambda path: callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    "CSVLogger": lambda path: callbacks.CSVLogger(path / "log.csv"),
    "TensorBoard": lambda path: callbacks.TensorBoard(path, write_graph=False),
    "a subclass": lambda path: Picky(),
}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".csv"} | {
        path.name: b"" for path in folder.iterdir() if path.suffix == ".h5"
    }


def known(callback):
    """Returns what a callback knows, without its files' whereabouts and its model."""
    hidden = {"_model", "filepath", "filename", "csv_file", "append_header", "monitor_op", "on_epoch_end"}
    hidden |= {name for name in vars(callback) if name.endswith(("_dir", "_module", "writer", "writers"))}
    values = {name: value for name, value in vars(callback).items() if name not in hidden}
    return json.dumps(values, default=lambda value: value.tolist())


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("cut", [1, 4, 7])
def test_kerass_own_decide_as_if_nothing_had_happened(name, cut, tmp_path):
    if name == "TensorBoard":
        pytest.importorskip("tensorflow")
    (tmp_path / "whole").mkdir(), (tmp_path / "cut").mkdir()
    whole = Training([MAKE[name](tmp_path / "whole")]).begin().run(range(len(LOSSES)))
    first = Training([MAKE[name](tmp_path / "cut")]).begin().run(range(cut))
    saved = first.state.state()
    first.run(range(cut, cut + 2))  # what comes after a checkpoint is lost
    rate = first.seen[cut - 1][1]
    second = Training([MAKE[name](tmp_path / "cut")])
    second.model.optimizer.learning_rate = rate  # it is a variable: the engine's to restore
    second.begin(saved).run(range(cut, len(LOSSES)))
    for each in (first, second, whole):
        each.list.on_train_end()
    assert first.seen[:cut] + second.seen == whole.seen
    assert known(second.list.callbacks[0]) == known(whole.list.callbacks[0])
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    np.testing.assert_array_equal(second.model.layers[0].bias, whole.model.layers[0].bias)


def test_arrays_have_stable_keys_and_are_copies():
    training = Training([MAKE["EarlyStopping"](None), callbacks.History()]).begin().run([0])
    arrays, meta = training.state.state()
    prefix = "callbacks/0.EarlyStopping/best_weights"
    assert set(arrays) == {f"{prefix}/0", f"{prefix}/1"}
    assert set(meta) == {"0.EarlyStopping", "1.History"}
    training.list.callbacks[0].best_weights[1][:] = 5
    assert arrays[f"{prefix}/1"].tolist() == [0.0]


def test_missing_csv_log(tmp_path, caplog):
    first = Training([callbacks.CSVLogger(tmp_path / "log.csv")]).begin().run([0, 1])
    saved = first.state.state()
    first.list.on_train_end()
    (tmp_path / "log.csv").unlink()
    second = Training([callbacks.CSVLogger(tmp_path / "log.csv")]).begin(saved).run([2])
    second.list.on_train_end()
    assert (tmp_path / "log.csv").read_text().splitlines() == ["epoch,loss,val_loss", "2,0.9,NA"]
    assert caplog.text.count("rows may be missing") == 1


# -- callbacks of one's own --------------------------------------------------------------------------------------------


class Mine(callbacks.Callback):
    """Keeps plain things of every kind."""

    def __init__(self, patience=3):
        super().__init__()
        self.patience = patience
        self.best, self.worst, self.count, self.name = math.inf, None, 0, "new"
        self.scores, self.table = [], {"a": 1}
        self.total = np.zeros(2, "float32")
        self.untouched = np.arange(3)
        self.draws = np.random.default_rng(3)

    def on_train_begin(self, logs=None):
        self.count = 5  # so that zero, what it was made with, is state as well

    def on_epoch_end(self, epoch, logs=None):
        self.best = min(self.best, logs["loss"])
        self.worst = math.nan if epoch % 2 else np.float32(0.1)
        self.count, self.name = 0, f"epoch {epoch}"
        self.scores.append((epoch, self.draws.normal()))
        self.table[epoch] = [True, None, -0.0]
        self.total += epoch


def test_plain_attributes_that_changed():
    first, second = Training([Mine()]).begin().run([0, 1, 2]), Training([Mine(patience=7)])
    arrays, meta = first.state.state()
    assert set(arrays) == {"callbacks/0.Mine/total"}
    assert sorted(meta["0.Mine"]["unchanged"]) == ["patience", "untouched"]
    mine, yours = first.list.callbacks[0], second.begin((arrays, meta)).list.callbacks[0]
    first.run([3, 4]), second.run([3, 4])
    assert yours.patience == 7
    for name in ("best", "worst", "count", "name", "scores", "table"):
        assert repr(getattr(yours, name)) == repr(getattr(mine, name)), name
    assert (yours.total.tolist(), yours.total.dtype) == (mine.total.tolist(), np.float32)


def test_going_back_in_the_same_process():
    """To a state in which some attributes had not changed yet."""
    training = Training([Mine()]).begin()
    mine, saved = training.list.callbacks[0], training.state.state()
    training.run([0, 1]).state.observe()
    training.state.restore(*saved)
    assert (mine.best, mine.worst, mine.count, mine.name) == (math.inf, None, 5, "new")
    assert (mine.scores, mine.table) == ([], {"a": 1})
    assert mine.draws.normal() == np.random.default_rng(3).normal()


class Told(callbacks.Callback):
    """Defines its state itself, and holds it in an object that could not be saved otherwise."""

    def __init__(self):
        super().__init__()
        self.queue = collections.deque([1.0], maxlen=3)

    def on_epoch_end(self, epoch, logs=None):
        self.queue.append(logs["loss"])

    def get_state(self):
        return {"queue": list(self.queue), "length": np.array([len(self.queue)])}

    def set_state(self, state):
        assert state["length"].tolist() == [len(state["queue"])]
        self.queue = collections.deque(state["queue"], maxlen=3)


def test_own_protocol(caplog):
    first = Training([Told()]).begin().run([0, 1, 2])
    arrays, meta = first.state.state()
    assert set(arrays) == {"callbacks/0.Told/length"}
    second = Training([Told()]).begin((arrays, meta))
    assert second.list.callbacks[0].queue == collections.deque([1.0, 0.8, 0.9])
    assert not caplog.text


class Odd(callbacks.Callback):
    """Keeps what cannot be saved, and what need not be."""

    def __init__(self, net):
        super().__init__()
        self.window = collections.deque([1])
        self.metric = keras.metrics.Mean()
        self.net, self.layer, self.rule, self.log = net, net.layers[0], max, logging.getLogger("odd")
        self.plain = 0


def test_warns_once_about_what_cannot_be_saved(caplog):
    training = Training([callbacks.History(), Odd(net := model())], of=net).begin()
    for _ in range(2):
        training.state.state()
    (record,) = caplog.records
    assert "1.Odd keeps in window (deque), metric (Mean)" in record.getMessage()
    assert "get_state() and set_state(state)" in record.getMessage()


class Half(callbacks.Callback):
    def get_state(self):
        return {}


class Unsaveable(Half):
    def get_state(self):
        return {"nested": [{1, 2}]}

    def set_state(self, state):
        pass


def test_protocols_that_do_not_work():
    with raises_problem(key="Half", reason="has get_state and no set_state"):
        CallbackState([Half()])
    with raises_problem(key="Unsaveable.get_state()", reason="returned an object of type set"):
        CallbackState([Unsaveable()]).observe()


def test_other_callbacks_are_refused():
    def saved(*watching):
        return CallbackState(watching).state()[1]

    stop, history, mine = callbacks.EarlyStopping(), callbacks.History(), Mine()
    for here, message in {
        (history,): "missing: EarlyStopping, Mine",
        (stop, history, mine, callbacks.History()): "unexpected: History",
        (stop, Told(), mine): "missing: History; unexpected: Told",
        (history, stop, mine): "order then: 0.EarlyStopping, 1.History, 2.Mine; now: 0.History, 1.EarlyStopping",
    }.items():
        with raises_problem(key="callbacks", reason=f"not those that the run was saved with .{message}"):
            CallbackState(here).check(saved(stop, history, mine))
    many = [callbacks.History() for _ in range(11)]  # in the order of their numbers, not of their names
    CallbackState(many).check(dict(sorted(saved(*many).items())))


def test_protocol_added_since_is_refused():
    meta = {"0.Told": CallbackState([Mine()]).state()[1]["0.Mine"]}
    with raises_problem(key="callbacks", reason="0.Told: get_state and set_state were added or removed"):
        CallbackState([Told()]).check(meta)


def test_backup_and_restore_is_left_out(tmp_path, caplog):
    watching = [[callbacks.BackupAndRestore(tmp_path / "backup"), Mine()]]
    made = KerasCallbacks(watching, model(), EpochSchedule(2, 3))
    assert [type(callback).__name__ for callback in made.list.callbacks] == ["Mine", "History"]
    assert caplog.text.count("BackupAndRestore is skipped") == 1


# -- values ------------------------------------------------------------------------------------------------------------


def test_values_come_back_exactly():
    value = {
        "floats": [0.1, -0.0, 5e-324, math.inf, -math.inf, 2**0.5],
        "whole": [2**80, -1, True, None, "tëxt \ud800"],
        "nested": ({3: (), (1, "a"): [[]], None: {}, 2.5: False},),
        "scalars": [np.float32(0.1), np.float64(0.1), np.int8(-3), np.uint64(2**63), np.bool_(1)],
        "others": [ml_dtypes.bfloat16(1.5), ml_dtypes.float8_e4m3fn(0.5)],
    }
    arrays = {}
    back = decode(json.loads(json.dumps(encode(value, "v", arrays))), arrays)
    assert repr(back) == repr(value)
    for name in ("scalars", "others"):
        assert [type(scalar) for scalar in back[name]] == [type(scalar) for scalar in value[name]]
    assert not arrays
    assert math.isnan(decode(encode(math.nan, "v", {}), {}))


def test_long_lists_of_numbers_are_arrays_and_come_back_exactly():
    """Thousands of epochs cost a save no formatting of numbers; checkpoints written before have them as JSON."""
    floats = [*np.random.default_rng(0).normal(size=1500).tolist(), math.nan, -0.0, math.inf]
    value = {"loss": floats, "epoch": list(range(1500)), "huge": [2**70] * 1500, "mixed": [1, 2.0] * 1500}
    encoded = encode(value, "mine", arrays := {})
    assert sorted(arrays) == ["mine/epoch/#numbers", "mine/loss/#numbers"]
    back = decode(json.loads(json.dumps(encoded)), arrays)
    assert repr(back) == repr(value)


def test_a_long_list_is_reset_to_what_it_was_at_construction():
    class Callback:
        def __init__(self):
            self.seen = [0] * 2000

    callback = Callback()
    state = CallbackState([callback])
    saved = state.state()
    callback.seen[3] = 7
    state.state()
    state.restore(*saved)
    assert callback.seen == [0] * 2000


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint64", "bool", "bfloat16"])
def test_arrays_come_back_exactly(dtype):
    value = [np.arange(6).reshape(2, 3).astype(dtype)[:, ::2], np.zeros((0, 2), dtype), np.ones((), dtype)]
    arrays = {}
    back = decode(encode(value, "v", arrays), arrays)
    assert list(arrays) == ["v/0", "v/1", "v/2"]
    assert [(a.dtype, a.shape, a.tobytes()) for a in back] == [(a.dtype, a.shape, a.tobytes()) for a in value]
    back[0][:] = 0
    assert value[0].any()


@pytest.mark.parametrize(
    "make",
    [random.Random, np.random.RandomState, np.random.default_rng]
    + [lambda seed, kind=kind: np.random.Generator(kind(seed)) for kind in (np.random.MT19937, np.random.Philox)],
)
def test_generators_go_on(make):
    generator, arrays = make(3), {}
    generator.random()
    back = decode(json.loads(json.dumps(encode(generator, "g", arrays))), arrays)
    assert [back.random() for _ in range(3)] == [generator.random() for _ in range(3)]


def test_values_that_are_not_plain():
    itself = []
    itself.append(itself)
    strange = [object(), {1}, itself, np.array([None]), np.array(["text"]), np.longdouble(1), collections.OrderedDict()]
    for value in strange:
        with pytest.raises(NotPlainError):
            encode([value], "v", {})


# -- actions -----------------------------------------------------------------------------------------------------------


class Tally:
    """An action that counts."""

    def __init__(self):
        self.logs = []

    def __call__(self, logs):
        self.logs.append(logs["training_loss"])

    def also(self, logs):
        self.logs.append(-1.0)


def test_actions_remember(tmp_path):
    def run(steps, checkpointer, tally):
        every = {"steps_per_loop": 2, "checkpoint_interval": 2}
        actions = [tally, tally.also, lambda logs: None]
        controller = Controller(trainer=SavedCounter(), checkpointer=checkpointer, hooks=[Actions(actions)], **every)
        controller.restore_checkpoint()
        controller.train(steps)
        return tally.logs

    checkpointer = MemoryCheckpointer()
    run(4, checkpointer, Tally())
    json.dumps(checkpointer.saved[4][1])
    assert run(8, checkpointer, Tally()) == run(8, MemoryCheckpointer(), Tally())


def test_actions_without_state():
    tally = Tally()
    assert owners([print, len, lambda logs: None, Tally, [].append, tally, tally.also]) == [tally]
