"""TensorFlow Datasets that are prepared in a folder; nothing is downloaded."""

import shutil
import sys
import types

import numpy as np
import pytest

from everstep.data import DataConfig, InputReader
from everstep.testing.problems import raises_problem

tf = pytest.importorskip("tensorflow")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # as if it were not installed
    reader = InputReader(DataConfig(tfds_name="mnist", tfds_split="train"))
    with raises_problem(reason="tfds_name needs the package 'tensorflow-datasets'", remedy=r"pip install .*\[tfds\]'"):
        reader.read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared dataset `numbers` of 23 samples in three files, without its builder's code."""
    path = tmp_path_factory.mktemp("tfds")
    prepare(path, "Numbers", ("image", "id"))
    return str(path)


def prepare(path, name, supervised_keys=None):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict({"id": tf.int64, "image": tfds.features.Image(shape=(2, 2, 1))})

    def info(self):
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=supervised_keys)

    def generate(self):
        for number in range(23):
            yield number, {"id": number, "image": np.full([2, 2, 1], number, np.uint8)}

    methods = {"_info": info, "_generate_examples": generate, "VERSION": tfds.core.Version("1.0.0")}
    methods["_split_generators"] = lambda self, manager: {"train": self._generate_examples()}
    builder = types.new_class(
        name, (tfds.core.GeneratorBasedBuilder,), {"skip_registration": True}, lambda body: body.update(methods)
    )
    config = tfds.download.DownloadConfig(num_shards=3)
    builder(data_dir=path).download_and_prepare(download_config=config)


def config(folder, **fields):
    chosen = {
        "tfds_name": "numbers",
        "tfds_split": "train",
        "global_batch_size": 4,
        "shuffle_buffer_size": 6,
        "seed": 3,
    }
    return DataConfig(**{**chosen, "tfds_data_dir": folder, **fields})


def ids(stream, batches=None):
    read = list(stream) if batches is None else [next(stream) for _ in range(batches)]
    return [number for batch in read for number in batch["id"].tolist()]


def test_reads_every_sample_once(folder):
    stream = InputReader(config(folder)).read()
    assert stream.batches_per_epoch == 6
    read = ids(stream)
    assert sorted(read) == list(range(23))
    assert ids(InputReader(config(folder)).read()) == read
    part = ids(InputReader(config(folder, tfds_split="train[:50%]")).read())
    assert set(part) < set(read)


@pytest.mark.parametrize("fields", [{}, {"cache": True}, {"cycle_length": 2, "block_length": 3}])
def test_resumes_with_the_next_batch(folder, fields):
    chosen = config(folder, is_training=True, **fields)
    tf.random.set_seed(1)
    straight = ids(InputReader(chosen).read(), 14)
    tf.random.set_seed(2)
    resumed = InputReader(chosen).read()
    resumed.restore({"epoch": 1, "batch": 3})
    assert ids(resumed, 6) == straight[32:]
    assert sorted(straight[:20]) != straight[:20] != straight[20:40]
    assert resumed.why_not_exact == ""


def test_forms_of_samples(folder):
    image, number = next(InputReader(config(folder, tfds_as_supervised=True)).read())
    assert image.shape == (4, 2, 2, 1)
    assert (image[:, 0, 0, 0] == number).all()
    raw = next(InputReader(config(folder, tfds_skip_decoding_feature="image")).read())
    assert raw["image"][0].startswith(b"\x89PNG")


@pytest.mark.parametrize("processes", [2, 4])
def test_each_process_reads_its_own_part(folder, processes):
    contexts = [tf.distribute.InputContext(processes, index, 1) for index in range(processes)]
    parts = [ids(InputReader(config(folder)).read(context)) for context in contexts]
    assert sorted(sum(parts, [])) == list(range(23))


def test_several_datasets_are_combined(folder):
    both = config(folder, tfds_name={"a": "numbers", "b": "numbers:1.0.0"}, is_training=True)
    combine = lambda parts: tf.data.Dataset.zip(parts)  # noqa: E731
    stream = InputReader(both, combine_fn=combine).read()
    batches = [next(stream) for _ in range(7)]
    assert stream.never_ends
    assert sorted(number for batch in batches for number in batch["a"]["id"])[:4] != [0, 0, 0, 0]
    assert batches[0]["a"]["id"].tolist() != batches[0]["b"]["id"].tolist()


def test_a_damaged_file_is_named(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    file = sorted(copy.rglob("*tfrecord-00001*"))[0]
    file.write_bytes(file.read_bytes()[:-3])
    with raises_problem(
        key="input_path", received=str(file), reason=r"is damaged.* at byte \d+, after \d good records"
    ):
        ids(InputReader(config(str(copy))).read())


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("tfds_name", "nowhere", {"received": "nowhere", "reason": "is not in", "remedy": "prepare it"}),
        ("tfds_name", "mnist", {"received": "mnist", "reason": "is not in", "remedy": "prepare it"}),
        ("tfds_name", "numbers:9.0.0", {"received": "numbers:9.0.0", "reason": "is not in"}),
        ("tfds_split", "test", {"received": "test", "reason": "but 'numbers' has 'train'"}),
        ("tfds_split", "train[:x]", {"received": "train[:x]"}),
        ("tfds_skip_decoding_feature", "image, jpeg", {"received": "jpeg", "reason": "'id', 'image'"}),
    ],
)
def test_missing_datasets_splits_and_features(folder, key, value, problem):
    with raises_problem(key=key, **problem):
        InputReader(config(folder, **{key: value})).read()


def test_as_supervised_needs_pairs(tmp_path):
    prepare(tmp_path, "Alone")
    chosen = config(str(tmp_path), tfds_name="alone", tfds_as_supervised=True)
    with raises_problem(
        key="tfds_as_supervised", received=True, reason="but 'alone' has no pairs", remedy="'id', 'image'$"
    ):
        InputReader(chosen).read()


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
def test_broken_metadata_is_reported(folder, tmp_path, file):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    next(copy.rglob(file)).write_text('{"name": [')
    with raises_problem(
        key="tfds_name", received="numbers", reason=r"cannot be read: [^\n]+", remedy=r"prepare it again[^\n]*$"
    ):
        InputReader(config(str(copy))).read()
