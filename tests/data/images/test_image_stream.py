"""Batches of images: the same bits for every number and kind of workers, and after every restore."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.images.image_files import encoded, write_folder

from everstep.data import make_stream
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.testing import streams

pytestmark = pytest.mark.slow

CHANGES = {"crop": 0.5, "flip": "horizontal", "colour": 0.2, "operations": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("images") / "photos", 50, height=9, width=9)


def stream(path, seed=3, training=True, **values):
    params = ImageDataConfig({"input_path": str(path), "size": 8, "global_batch_size": 20, "workers": 0, **values})
    return make_stream(ImageSource(params), params, training=training, seed=seed)


def read(one, count):
    return [next(one) for _ in range(count)]


WORKERS = [
    {"workers": 1},
    {"workers": 3, "worker_kind": "threads"},
    {"workers": None},
    {"workers": 2},
]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_workers_change_nothing(folder, workers):
    alone = read(stream(folder, augmentation=CHANGES), 5)
    together = read(stream(folder, augmentation=CHANGES, **workers), 5)
    assert all(map(streams.same_batch, alone, together))


def test_every_image_is_varied_in_every_epoch(folder):
    one = stream(folder, augmentation=CHANGES, drop_remainder=False)
    epochs = [np.concatenate([images for images, _ in read(one, 3)]) for _ in range(2)]
    contents = [{image.tobytes() for image in epoch} for epoch in epochs]
    assert len(contents[0] & contents[1]) < 10


def test_what_is_drawn_for_an_image_does_not_depend_on_the_batch(folder):
    small, large = (
        stream(folder, augmentation=CHANGES, global_batch_size=size, drop_remainder=False) for size in (5, 50)
    )
    whole = np.concatenate([images for images, _ in read(small, 10)])
    np.testing.assert_array_equal(next(large)[0], whole)


def test_evaluation_varies_nothing(folder):
    varied = stream(folder, training=False, augmentation=CHANGES)
    assert all(map(streams.same_batch, list(varied), list(stream(folder, training=False))))


def test_rows_of_parquet_files_come_row_group_by_row_group(tmp_path):
    columns = {"image": [encoded(np.uint8([[number]])) for number in range(40)], "label": list(range(40))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=8)
    one = stream(tmp_path / "a.parquet", size=1, channels=1, global_batch_size=8)
    epochs = [[number for _ in range(5) for number in next(one)[0].ravel().tolist()] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(40))
    assert epochs[0] != epochs[1]
    for epoch in epochs:
        groups = [number // 8 for number in epoch]
        assert len(set(groups[:16])) == len(set(groups[16:32])) == 2
        assert groups[:16] != sorted(groups[:16])  # mixed, not one after the other


def test_a_process_reads_only_its_rows(folder, monkeypatch):
    one = stream(folder)
    fetched = []
    fetch = one._source.samples.fetch
    monkeypatch.setattr(one._source.samples, "fetch", lambda numbers: fetched.extend(numbers) or fetch(numbers))
    one.keep_rows(lambda size: slice(0, size // 4))
    assert len(next(one)[1]) == 5
    next(one)
    assert len(fetched) == 10  # with nothing read ahead, without workers


def test_images_read_by_several_streams_are_the_same(folder):
    both = itertools.islice(zip(stream(folder), stream(folder), strict=False), 6)
    assert all(streams.same_batch(one, other) for one, other in both)
