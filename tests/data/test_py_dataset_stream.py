"""`keras.utils.PyDataset`: order, epoch hooks, worker threads and processes."""

import itertools
import random
import sys
import threading
import time

import numpy as np
import pytest

from everstep.data import DataConfig, PyDatasetStream, make_stream
from everstep.data.workers import why_no_processes
from everstep.errors import TrainingError
from everstep.testing import streams
from everstep.testing.problems import raises_problem

keras = pytest.importorskip("keras")
BATCHES, BATCH = 5, 3
SAMPLES = BATCHES * BATCH - 1


class Numbers(keras.utils.PyDataset):
    """Batches that contain the indices of their samples."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.indices, self.read, self.threads = np.arange(SAMPLES), [], set()

    def __len__(self):
        return BATCHES

    def __getitem__(self, index):
        self.read.append(index)
        self.threads.add(threading.get_ident())
        ids = self.indices[index * BATCH : (index + 1) * BATCH]
        return {"id": ids, "row": np.stack([ids, 10 * ids], axis=1).astype("float32")}


class Reshuffled(Numbers):
    """Changes itself at the start and the end of each epoch."""

    def on_epoch_begin(self):
        self.indices = np.roll(self.indices, random.randrange(5) + 1)

    def on_epoch_end(self):
        np.random.shuffle(self.indices)


class Noisy(Numbers):
    """Draws from the global random generators."""

    def __getitem__(self, index):
        return super().__getitem__(index)["id"], np.random.normal(size=2), np.array([random.random()])


class Slow(Numbers):
    """Later batches take less time."""

    def __getitem__(self, index):
        time.sleep(0.002 * (BATCHES - index))
        return super().__getitem__(index)


class Endless(Numbers):
    """Has infinitely many batches."""

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return np.arange(index, index + 2), np.random.normal(size=2)


def py_dataset_streams(kind, shuffle=True, **kwargs):
    return lambda repeat: PyDatasetStream(kind(**kwargs), shuffle=shuffle, seed=5, repeat=repeat)


FACTORIES = {
    "in order": py_dataset_streams(Numbers, shuffle=False),
    "shuffled": py_dataset_streams(Numbers),
    "noisy": py_dataset_streams(Noisy),
    "noisy threads": py_dataset_streams(Noisy, workers=3),
    "threads": py_dataset_streams(Slow, workers=4, max_queue_size=3),
    "reshuffled": py_dataset_streams(Reshuffled),
    "reshuffled threads": py_dataset_streams(Reshuffled, workers=2),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_contract(name, check):
    if check is streams.check_restores_twice and name.startswith("reshuffled"):
        with raises_problem(reason="cannot go back to an earlier epoch"):
            check(FACTORIES[name])
    else:
        check(FACTORIES[name])


def test_every_sample_once_per_epoch():
    streams.check_every_sample_once(FACTORIES["in order"], SAMPLES, shuffled=False)
    for name in ("reshuffled", "threads"):
        stream = FACTORIES[name](True)
        orders = [np.concatenate([next(stream)["id"] for _ in range(BATCHES)]).tolist() for _ in range(3)]
        assert all(sorted(order) == list(range(SAMPLES)) for order in orders)
        assert len(set(map(tuple, orders))) == 3


def test_resuming_computes_nothing_before_the_position():
    dataset = Numbers()
    stream = PyDatasetStream(dataset, repeat=True)
    stream.restore({"epoch": 9, "batch": 4})
    next(stream)
    assert dataset.read == [4]


class Logged(Numbers):
    """Records the calls."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")

    def __getitem__(self, index):
        self.calls.append(index)
        return super().__getitem__(index)


def test_hooks_are_called_in_order_and_replayed():
    dataset = Logged()
    stream = PyDatasetStream(dataset, repeat=True)
    for _ in range(2 * BATCHES + 1):
        next(stream)
    assert dataset.calls == 2 * ["begin", *range(BATCHES), "end"] + ["begin", 0]
    resumed = Logged()
    stream = PyDatasetStream(resumed, repeat=True)
    stream.restore({"epoch": 2, "batch": 1})
    next(stream)
    assert resumed.calls == 2 * ["begin", "end"] + ["begin", 1]


def test_each_evaluation_is_an_epoch():
    dataset = Logged()
    stream = make_stream(dataset, DataConfig(), training=False, seed=0)
    for _ in range(2):
        assert len(list(stream)) == BATCHES
        stream.restore({"epoch": 0, "batch": 0})
    assert dataset.calls == 2 * ["begin", *range(BATCHES), "end"]
    assert "remove the method" in stream.why_not_exact
    assert FACTORIES["reshuffled"](True).why_not_exact == FACTORIES["shuffled"](False).why_not_exact == ""


def test_threads_are_used_and_few_batches_are_computed_ahead():
    dataset = Slow(workers=3, max_queue_size=2)
    stream = PyDatasetStream(dataset)
    ids = [next(stream)["id"][0] for _ in range(2)]
    time.sleep(0.05)
    assert ids == [0, BATCH]
    assert len(dataset.read) <= 2 + 2
    assert threading.get_ident() in dataset.threads
    assert len(dataset.threads) > 1


def test_one_worker_starts_no_thread():
    dataset = Numbers(workers=1)
    list(PyDatasetStream(dataset))
    assert dataset.threads == {threading.get_ident()}


def test_threads_are_not_used_for_a_dataset_that_draws_random_numbers(caplog):
    dataset = Noisy(workers=3)
    list(PyDatasetStream(dataset))
    assert dataset.threads == {threading.get_ident()}
    assert "Noisy draws from random or np.random, which its 3 threads share" in caplog.text


def test_the_programs_random_state_does_not_change():
    np.random.seed(3)
    expected = np.random.normal()
    np.random.seed(3)
    list(FACTORIES["noisy"](False))
    assert np.random.normal() == expected


def test_an_error_in_a_thread_is_raised():
    class Fails(Numbers):
        def __getitem__(self, index):
            if index == 3:
                raise KeyError("damaged")
            return super().__getitem__(index)

    stream = PyDatasetStream(Fails(workers=2))
    assert [next(stream)["id"][0] for _ in range(3)] == [0, 3, 6]
    for _ in range(2):  # also at the next attempt
        with pytest.raises(KeyError, match="damaged"):
            next(stream)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_infinite_dataset(workers):
    def stream():
        return make_stream(Endless(workers=workers), DataConfig(), training=True, seed=0)

    straight = stream()
    assert straight.batches_per_epoch is None
    assert PyDatasetStream(Endless()).never_ends
    batches = [next(straight) for _ in range(7)]
    assert [batch[0][0] for batch in batches] == list(range(7))
    resumed = stream()
    resumed.restore({"epoch": 0, "batch": 5})
    assert all(streams.same_batch(next(resumed), batch) for batch in batches[5:])


@pytest.mark.full
def test_processes_compute_the_same_batches_as_one_process():
    """Real processes; two epochs, between which the dataset changes itself."""
    alone = _draws(Drawing(), 2 * BATCHES)
    assert _draws(Drawing(workers=2, use_multiprocessing=True), 2 * BATCHES) == alone


class Drawing(Reshuffled):
    """At the top of the module, so that a worker process can import it."""

    def __getitem__(self, index):
        ids = self.indices[index * BATCH : (index + 1) * BATCH]
        return ids, np.random.normal(size=2), np.array([random.random()])


def _draws(dataset, count):
    stream = PyDatasetStream(dataset, shuffle=True, seed=1, repeat=True)
    return [[leaf.tolist() for leaf in next(stream)] for _ in range(count)]


class Dies(Numbers):
    """Ends its process, as if it ran out of memory."""

    def __getitem__(self, index):
        import os

        os._exit(9)


@pytest.mark.full
def test_a_worker_process_that_ends_is_reported():
    with raises_problem(TrainingError, reason="a worker process of Dies has ended"):
        next(PyDatasetStream(Dies(workers=1, use_multiprocessing=True)))


def test_a_dataset_that_cannot_be_pickled_is_reported():
    dataset = Numbers(workers=1, use_multiprocessing=True)
    dataset.read = lambda: 0
    with raises_problem(reason="Numbers has use_multiprocessing=True, but cannot be sent", remedy="set use_multi"):
        next(PyDatasetStream(dataset))


class NoLength(keras.utils.PyDataset):
    """Has no `__len__`."""


class Empty(Numbers):
    """Has no batches."""

    def __len__(self):
        return 0


class Shrinks(Numbers):
    """Has fewer batches in every epoch."""

    left = BATCHES

    def __len__(self):
        return self.left

    def on_epoch_end(self):
        self.left -= 1


class Scalars(Numbers):
    """Returns samples."""

    def __getitem__(self, index):
        return np.zeros(3), 1.0


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (NoLength, {"reason": "NoLength has no number of batches", "remedy": "add __len__"}),
        (Empty, {"reason": "Empty has 0 batches"}),
        (Shrinks, {"reason": "Shrinks has 4 batches in epoch 1 and had 5"}),
        (Scalars, {"received": 1.0, "reason": r"expected a batch from the PyDataset, not a single value at \[1\]"}),
    ],
)
def test_invalid_datasets_are_refused(kind, fields):
    with raises_problem(**fields):
        list(itertools.islice(PyDatasetStream(kind(), repeat=True), BATCHES + 1))


def test_training_data_is_shuffled_by_default():
    streams_of = [make_stream(Numbers(), DataConfig(), training=True, seed=0, shuffle=s) for s in (None, False)]
    assert all(stream.repeat for stream in streams_of)
    shuffled, plain = ([next(stream)["id"][0] for _ in range(BATCHES)] for stream in streams_of)
    assert plain == sorted(shuffled) != shuffled


class Grows(Shrinks):
    """Has more batches in every epoch."""

    def on_epoch_end(self):
        self.left += 1


def test_a_dataset_that_has_grown_keeps_the_length_of_its_epochs(caplog):
    stream = PyDatasetStream(Grows(), repeat=True)
    read = [batch["id"].tolist() for batch in itertools.islice(stream, 3 * BATCHES)]
    assert read[:BATCHES] == read[BATCHES : 2 * BATCHES] == read[2 * BATCHES :]
    assert [message for message in caplog.messages if "has grown" in message] == [
        f"Grows has grown to {BATCHES + 1} batches: an epoch still has {BATCHES}, as in Keras"
    ]


class Typed(Numbers):
    """As if it were written at a prompt."""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('training')", "train.py, which processes import, trains outside of"),
        ("if 0:\n  pass", "train.py, which processes import, trains outside of"),
        ("if __name__ == '__main__':\n  print('training')", ""),
        (None, "no file"),
    ],
)
def test_processes_are_used_only_if_they_can_import_the_program(tmp_path, monkeypatch, program, reason):
    path = tmp_path / "train.py"
    if program is not None:
        path.write_text(program)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(path), raising=False)
    assert reason in why_no_processes(Numbers())
    assert bool(reason) == bool(why_no_processes(Numbers()))


def test_a_dataset_that_was_typed_at_a_prompt_has_no_processes(monkeypatch):
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert not why_no_processes(Numbers())
    monkeypatch.setattr(Typed, "__module__", "__main__")
    assert "no file" in why_no_processes(Typed())


def test_without_processes_threads_compute_the_same_batches(tmp_path, monkeypatch, caplog):
    plain = [batch["id"].tolist() for batch in itertools.islice(PyDatasetStream(Numbers()), BATCHES)]
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "missing.py"), raising=False)
    stream = PyDatasetStream(Numbers(workers=2, use_multiprocessing=True))
    assert [batch["id"].tolist() for batch in itertools.islice(stream, BATCHES)] == plain
    assert "uses threads instead of processes" in caplog.text
