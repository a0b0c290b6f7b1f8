"""Of sources with random access each process reads only its rows; of others it keeps its rows of whole batches."""

import grain
import numpy as np
import pytest

from everstep.data import ArrayStream, IterableStream
from everstep.data.grain import GrainStream
from everstep.data.map_dataset import MapDatasetStream
from everstep.data.wrappers import LimitedStream, MappedStream
from everstep.testing.problems import raises_problem

SAMPLES, BATCH = 11, 4


def second_half(samples):
    return slice(samples // 2, samples)


class Recorded:
    """A dataset that knows which samples were read."""

    def __init__(self, sample=lambda index: {"id": index, "row": np.full(2, index, "float32")}):
        self.read, self._sample = [], sample

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.read.append(int(index))
        return self._sample(index)


def ids_of_kept_rows(stream, batches=3):
    """Returns the ids that a process gets that needs the second half of each batch."""
    stream.peek()  # a whole batch, as a model is built on
    stream.keep_rows(second_half)
    return [next(stream)["id"].tolist() for _ in range(batches)]


@pytest.mark.parametrize("limit", [False, True], ids=["whole epochs", "limited"])
def test_a_dataset_by_index_reads_its_rows_only(limit):
    data = Recorded()
    stream = MapDatasetStream(data, BATCH)
    assert ids_of_kept_rows(LimitedStream(stream, 3) if limit else stream) == [[2, 3], [6, 7], [9, 10]]
    assert data.read == [0, 1, 2, 3, 2, 3, 6, 7, 9, 10]


@pytest.mark.parametrize("step", ["samples", "batches"])
def test_grain_reads_its_rows_only(step):
    data = Recorded()
    dataset = grain.MapDataset.source(data)
    stream = GrainStream(dataset if step == "samples" else dataset.batch(BATCH), batch_size=BATCH)
    assert stream.reads_rows
    stream.keep_rows(second_half)
    data.read.clear()
    assert [next(stream)["id"].tolist() for _ in range(3)] == [[2, 3], [6, 7], [9, 10]]
    assert not {4, 5, 8} & set(data.read), "only one batch is read whole, to know its form"


def test_random_numbers_of_a_dataset_stay_those_of_one_process():
    def noisy():
        return MapDatasetStream(Recorded(lambda index: {"id": index + 100 * np.random.random()}), BATCH, seed=3)

    whole = list(noisy())
    assert ids_of_kept_rows(noisy()) == [batch["id"][second_half(len(batch["id"]))].tolist() for batch in whole]


@pytest.mark.parametrize(
    "make", [MapDatasetStream, lambda data, size: GrainStream(grain.MapDataset.source(data), batch_size=size)]
)
def test_a_sample_of_another_shape_is_found(make):
    data = Recorded(lambda index: {"id": np.int64(index), "row": np.zeros(3 if index in (6, 7) else 2)})
    stream = make(data, BATCH)
    with raises_problem(reason="shape"):
        ids_of_kept_rows(stream)


def test_what_has_no_random_access():
    batches = list(ArrayStream({"id": np.arange(SAMPLES)}, BATCH))
    for stream in (
        IterableStream(lambda: iter(batches)),
        MappedStream(ArrayStream({"id": np.arange(SAMPLES)}, BATCH), lambda batch: batch),
        GrainStream(grain.MapDataset.source(range(SAMPLES)).map(lambda i: {"id": np.int64(i)}).batch(BATCH).map(dict)),
    ):
        assert not stream.reads_rows
        assert ids_of_kept_rows(stream) == [[2, 3], [6, 7], [9, 10]]


def test_batches_that_only_an_engine_can_divide_stay_whole():
    stream = IterableStream(lambda: iter([(np.zeros((4, 1)), np.zeros(2))] * 3))
    stream.keep_rows(second_half)
    block = stream.block(3)
    assert block.batch_size is None
    assert [leaf.shape for leaf in block.data] == [(3, 4, 1), (3, 2)]
