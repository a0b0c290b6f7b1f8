"""Limited streams (the first batches of each epoch, of every source), and batches that are held in memory."""

import itertools

import keras
import numpy as np
import pytest
from record_files import reader, write

from everstep.data import (
    ArrayStream,
    DataConfig,
    GrainStream,
    IterableStream,
    MapDatasetStream,
    PyDatasetStream,
    TFDataStream,
    make_stream,
)
from everstep.data.wrappers import LimitedStream, keep_first_batches, limited
from everstep.testing import streams
from everstep.testing.problems import raises_problem

tf = pytest.importorskip("tensorflow")
grain = pytest.importorskip("grain")

SAMPLES, BATCH, LIMIT = 14, 3, 3
IDS = np.arange(SAMPLES)
ROWS = np.stack([IDS, IDS * 10], axis=1).astype("float32")


class Numbers(keras.utils.PyDataset):
    """Five batches, shuffled in place at the end of every epoch; records the calls."""

    def __init__(self):
        super().__init__()
        self.order, self.calls = IDS.copy(), []

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.calls.append(index)
        return self.order[index * BATCH : (index + 1) * BATCH], None

    def on_epoch_end(self):
        self.calls.append("end")
        np.random.shuffle(self.order)


class Rows:
    """A dataset by index that draws from the global random generators."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return {"id": index, "noise": np.random.normal()}


def shuffled_generator():
    yield from np.split(np.random.permutation(IDS), range(BATCH, SAMPLES, BATCH))


def arrays(repeat, **settings):
    return ArrayStream((IDS, ROWS), BATCH, shuffle=True, seed=5, repeat=repeat, **settings)


def dataset(**shuffle):
    data = tf.data.Dataset.from_tensor_slices({"id": IDS, "row": ROWS})
    return (data.shuffle(SAMPLES, **shuffle) if shuffle else data).batch(BATCH)


def grain_dataset():
    return grain.MapDataset.source(IDS).seed(7).shuffle().batch(BATCH)


def grain_loader():
    sampler = grain.samplers.IndexSampler(SAMPLES, grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=3)
    return grain.DataLoader(data_source=IDS, sampler=sampler, operations=[grain.transforms.Batch(BATCH)])


SOURCES = {
    "arrays": arrays,
    "generator": lambda repeat: IterableStream(shuffled_generator, repeat=repeat, seed=5),
    "dataset by index": lambda repeat: MapDatasetStream(Rows(), BATCH, shuffle=True, seed=5, repeat=repeat),
    "PyDataset": lambda repeat: PyDatasetStream(Numbers(), shuffle=True, seed=5, repeat=repeat),
    "tf.data": lambda repeat: TFDataStream(dataset(), repeat=repeat),
    "tf.data shuffled": lambda repeat: TFDataStream(dataset(seed=5), repeat=repeat),
    "tf.data cached": lambda repeat: TFDataStream(dataset(seed=5).cache(), repeat=repeat),
    "Grain": lambda repeat: GrainStream(grain_dataset(), repeat=repeat),
    "Grain DataLoader": lambda repeat: GrainStream(grain_loader(), repeat=repeat),
}
POSITIONS = [streams.check_counts_epochs, streams.check_restores_everywhere, streams.check_ends_and_starts_again]
FORWARD_ONLY = {"tf.data shuffled", "tf.data cached", "PyDataset"}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    pattern = write(tmp_path_factory.mktemp("records"))
    return lambda repeat: reader(pattern, repeat=repeat).read()


@pytest.fixture
def source(request):
    name = request.param
    return name, request.getfixturevalue("records") if name == "records" else SOURCES[name]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("check", POSITIONS, ids=lambda check: check.__name__)
def test_positions_of_every_source(name, check):
    check(lambda repeat: LimitedStream(SOURCES[name](repeat), LIMIT))


@pytest.mark.parametrize("check", [c for c in streams.CHECKS if c not in POSITIONS], ids=lambda check: check.__name__)
def test_the_rest_of_the_contract(check):
    check(lambda repeat: LimitedStream(arrays(repeat), LIMIT))


@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("limit", [LIMIT, 4, 5])
def test_limited_arrays_meet_the_contract(check, limit):
    check(lambda repeat: limited(arrays(repeat), limit))


def test_limited_arrays_have_the_same_batches():
    fast, plain = limited(arrays(True), LIMIT), LimitedStream(arrays(True), LIMIT)
    assert all(streams.same_batch(next(fast), next(plain)) for _ in range(3 * LIMIT))
    assert fast.block(3 * LIMIT).count == 3 * LIMIT  # across epochs


@pytest.mark.full
@pytest.mark.parametrize("source", [*SOURCES, "records"], indirect=True)
@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_contract(source, check):
    name, make = source
    if check is streams.check_restores_twice and name in FORWARD_ONLY:
        with raises_problem(reason="cannot go back to an earlier"):
            check(lambda repeat: LimitedStream(make(repeat), LIMIT))
    else:
        check(lambda repeat: LimitedStream(make(repeat), LIMIT))


@pytest.mark.parametrize("source", [*SOURCES, "records"], indirect=True)
def test_a_limited_stream_has_the_first_batches_of_each_epoch(source):
    _, make = source
    length = sum(1 for _ in make(False))
    assert length > LIMIT
    whole, short = make(True), LimitedStream(make(True), LIMIT)
    for _ in range(3):
        batches = [next(whole) for _ in range(length)]
        assert all(streams.same_batch(next(short), batch) for batch in batches[:LIMIT])


@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_held_batches_meet_the_contract(check):
    check(lambda repeat: keep_first_batches(arrays(True), 3, "key")[0 if repeat else 1])


def test_held_batches_are_the_same_in_every_epoch():
    again, once = keep_first_batches(SOURCES["tf.data shuffled"](True), 2, "key")
    first = [next(again), next(again)]
    assert all(streams.same_batch(next(again), first[i % 2]) for i in range(6))
    assert all(map(streams.same_batch, once, first))


def test_epochs_of_a_limited_dataset_call_its_hooks():
    data = Numbers()
    stream = LimitedStream(PyDatasetStream(data, repeat=True), 2)
    for _ in range(5):
        next(stream)
    assert data.calls == [0, 1, "end", 0, 1, "end", 0]


def test_a_limited_endless_source_has_epochs():
    for endless in (TFDataStream(dataset().repeat()), IterableStream(lambda: itertools.repeat(ROWS))):
        assert len(list(LimitedStream(endless, 7))) == 7
    stream = LimitedStream(TFDataStream(dataset().repeat(), repeat=False), 7)
    assert (stream.never_ends, stream.batches_per_epoch) == (False, 7)


def test_length_of_a_limited_stream():
    assert LimitedStream(arrays(True), 4).batches_per_epoch == 4
    unknown = LimitedStream(IterableStream(lambda: iter([ROWS, ROWS]), repeat=True), 5)
    assert unknown.batches_per_epoch is None
    states = [unknown.state() for _ in itertools.islice(unknown, 3)]
    assert [(state["epoch"], state["batch"]) for state in states] == [(0, 1), (0, 2), (1, 1)]


@pytest.mark.parametrize("limit", [6, 10**9])
def test_a_limit_above_the_number_of_batches_is_refused(limit):
    with raises_problem(key="limit_batches", received=limit, reason="but the data has 5 batches an epoch"):
        make_stream((IDS, ROWS), DataConfig(global_batch_size=3, limit_batches=limit), training=False, seed=0)
    with raises_problem(key="key", received=limit, reason="but the data has 5 batches"):
        keep_first_batches(arrays(True), limit, "key")
    with raises_problem(key="key", received=limit, reason="but the data has 2 batches"):
        keep_first_batches(IterableStream(lambda: iter([ROWS, ROWS])), limit, "key")


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit):
    with raises_problem(key="limit_batches", received=limit, reason="must be at least 1"):
        DataConfig(limit_batches=limit).validate()


def test_the_limit_applies_to_every_source():
    config = DataConfig(global_batch_size=3, limit_batches=2)
    for source in ((IDS, ROWS), arrays(False), dataset()):
        assert len(list(make_stream(source, config, training=False, seed=0))) == 2
