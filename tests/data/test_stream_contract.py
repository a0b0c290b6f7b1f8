"""Every source meets the same contract; record files, which take longer, are in test_input_reader_resume.py."""

import contextlib
import sqlite3

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from everstep.data import ArrayStream, IterableStream, SqliteStream, TFDataStream
from everstep.data.images import ImageDataConfig, ImageSource, ImageStream
from everstep.data.parquet import ParquetSource, ParquetStream
from everstep.testing import streams
from everstep.testing.problems import raises_problem

SAMPLES, BATCH = 11, 3
IDS = np.arange(SAMPLES)
ROWS = np.stack([IDS, IDS * 10], axis=1).astype("float32")
tf = pytest.importorskip("tensorflow")


def shuffled_generator():
    for ids in np.split(np.random.permutation(IDS), range(BATCH, SAMPLES, BATCH)):
        yield ids, ROWS[ids]


def dataset(**shuffle):
    data = tf.data.Dataset.from_tensor_slices({"id": IDS, "row": ROWS})
    return (data.shuffle(SAMPLES, **shuffle) if shuffle else data).batch(BATCH)


def make_arrays(shuffle, drop=False):
    arrays = {"id": IDS, "row": (ROWS, None)}
    return lambda repeat: ArrayStream(arrays, BATCH, shuffle=shuffle, seed=5, repeat=repeat, drop_remainder=drop)


def make_images(path, **values):
    config = ImageDataConfig(
        {"input_path": str(path), "size": [1, 2], "channels": 1, "workers": 2, "worker_kind": "threads"} | values
    )
    source = ImageSource(config)
    return lambda repeat: Numbers(source, BATCH, shuffle=True, seed=5, repeat=repeat, training=True)


class Numbers(ImageStream):
    """Batches with the images' numbers first, as the checks expect them."""

    def open_rows(self, epoch, batch, rows):
        for part in super().open_rows(epoch, batch, rows):
            yield part._replace(data={"id": part.data[0][:, 0, 0, 0].astype(int), "image": part.data})


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for number in IDS:
        path = folder / str(number % 2) / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((1, 2), number, np.uint8)).save(path)
    return folder


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """Two files of several row groups, with borders inside of batches."""
    folder = tmp_path_factory.mktemp("rows")
    for name, rows in (("a", slice(0, 7)), ("b", slice(7, None))):
        table = pa.table({"id": IDS[rows], "row": list(ROWS[rows])})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=2)
    return str(folder / "*.parquet")


def make_parquet(path, shuffle):
    source = ParquetSource(path)
    return lambda repeat: ParquetStream(source, BATCH, shuffle=shuffle, seed=5, repeat=repeat)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("sqlite") / "rows.db")
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE numbers (id, ten)")
        database.executemany("INSERT INTO numbers VALUES (?, ?)", [(int(number), 10.0 * number) for number in IDS])
    return path


def make_sqlite(path, shuffle):
    order = {"shuffle": shuffle, "seed": 5}
    return lambda repeat: SqliteStream(path, "numbers", "id", ["id", "ten"], BATCH, **order, repeat=repeat)


@pytest.fixture
def factories(image_folder, parquet, sqlite):
    batches = list(make_arrays(False)(False))
    samples = [{"id": number, "row": row} for number, row in zip(IDS, ROWS, strict=True)]
    return {
        "arrays": make_arrays(False),
        "arrays shuffled": make_arrays(True),
        "arrays without remainder": make_arrays(True, drop=True),
        "generator": lambda repeat: IterableStream(lambda: iter(batches), repeat=repeat),
        "generator shuffled": lambda repeat: IterableStream(shuffled_generator, repeat=repeat, seed=5),
        "list": lambda repeat: IterableStream(batches, repeat=repeat),
        "samples": lambda repeat: IterableStream(samples, repeat=repeat, batch_size=BATCH),
        "tf.data": lambda repeat: TFDataStream(dataset(), repeat=repeat),
        "tf.data fixed shuffle": lambda repeat: TFDataStream(
            dataset(seed=5, reshuffle_each_iteration=False), repeat=repeat
        ),
        "tf.data shuffled": lambda repeat: TFDataStream(dataset(seed=5), repeat=repeat),
        "tf.data unknown length": lambda repeat: TFDataStream(dataset().filter(lambda batch: True), repeat=repeat),
        "images shuffled": make_images(image_folder),
        "images augmented": make_images(image_folder, augmentation={"colour": 0.5}),
        "Parquet": make_parquet(parquet, False),
        "Parquet shuffled": make_parquet(parquet, True),
        "SQLite": make_sqlite(sqlite, False),
        "SQLite shuffled": make_sqlite(sqlite, True),
        "tf.data cached shuffle": lambda repeat: TFDataStream(dataset(seed=5).cache(), repeat=repeat),
    }


NAMES = [
    "arrays",
    "arrays shuffled",
    "arrays without remainder",
    "generator",
    "generator shuffled",
    "list",
    "samples",
    "tf.data",
    "tf.data fixed shuffle",
    "tf.data shuffled",
    "tf.data unknown length",
    "tf.data cached shuffle",
    "images shuffled",
    "images augmented",
    "Parquet shuffled",
    "Parquet",
    "SQLite shuffled",
    "SQLite",
]
FORWARD_ONLY = {"tf.data shuffled", "tf.data cached shuffle"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_contract(factories, name, check):
    if check is streams.check_restores_twice and name in FORWARD_ONLY:
        with raises_problem(reason="cannot go back to an earlier pass"):
            check(factories[name])
    else:
        check(factories[name])


def test_every_source_is_covered(factories):
    assert set(NAMES) == set(factories)


@pytest.mark.parametrize(
    "name", sorted(set(NAMES) - {"arrays without remainder", "tf.data cached shuffle", "images augmented"})
)
def test_every_sample_once(factories, name):
    shuffled = name.endswith("shuffled")
    if name != "tf.data fixed shuffle":
        streams.check_every_sample_once(factories[name], SAMPLES, shuffled=shuffled)


def test_the_suite_detects_a_stream_that_repeats_a_batch():
    class Stutters(ArrayStream):
        def open(self, epoch, batch):
            return super().open(epoch, max(batch - 1, 0))

    with pytest.raises(AssertionError):
        streams.check_restores_everywhere(lambda repeat: Stutters(IDS, BATCH, repeat=repeat))


def test_the_suite_detects_an_order_that_depends_on_history():
    history = np.random.default_rng(0)

    def batches():
        yield from np.split(history.permutation(IDS), range(BATCH, SAMPLES, BATCH))

    with pytest.raises(AssertionError):
        streams.check_restores_everywhere(lambda repeat: IterableStream(batches, repeat=repeat))
