"""Damaged and hostile files are refused with a one-line error, and leave the model unchanged."""

import logging
import os
import re
import zipfile

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import tensorstore as ts
from keras import layers

from everstep.checkpoint import arrays, manifest, partial_read, parts
from everstep.checkpoint.manifest import Damaged, Manifest
from everstep.errors import UsageError
from everstep.task.initial.loading import load
from everstep.task.initial.matching import model_weights
from everstep.testing import models
from everstep.testing.tasks import seeded

WEIGHTS = "model.weights.h5"


def values(model: keras.Model) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(weight.value) for weight in model.weights]


def refused(model: keras.Model, path, reason: str) -> None:
    """Asserts that loading fails for a reason, and leaves the model unchanged."""
    before = values(model)
    with pytest.raises(UsageError) as found:
        load(model, str(path))
    assert found.value.key == "task.init_checkpoint"
    assert re.search(reason, found.value.reason)
    assert str(found.value).startswith("task.init_checkpoint: received ")
    assert "\n" not in str(found.value)
    for ours, was in zip(values(model), before, strict=True):
        np.testing.assert_array_equal(ours, was)


@pytest.mark.parametrize("path", [".", "./", "/"])
def test_directories_without_a_name(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(seeded(models.mlp), path, "holds no weights")


def test_the_current_directory(tmp_path, monkeypatch):
    source, model = seeded(models.mlp, 1), seeded(models.mlp, 2)
    source.save(tmp_path / "a.keras")
    monkeypatch.chdir(tmp_path)
    assert load(model, ".").is_complete
    np.testing.assert_array_equal(values(model)[0], values(source)[0])


def test_a_name_that_is_too_long():
    refused(seeded(models.mlp), "x" * 5000, "cannot be read: File name too long")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damaged_archives(method, tmp_path):
    model = seeded(models.mlp)
    model.save(tmp_path / "a.keras")
    with zipfile.ZipFile(tmp_path / "a.keras") as old, zipfile.ZipFile(tmp_path / "b.keras", "w", method) as new:
        new.writestr(WEIGHTS, old.read(WEIGHTS))
        info = new.getinfo(WEIGHTS)
    data = bytearray((tmp_path / "b.keras").read_bytes())
    middle = info.header_offset + 60 + info.compress_size // 2
    data[middle : middle + 12] = bytes(byte ^ 0x5A for byte in data[middle : middle + 12])
    (tmp_path / "b.keras").write_bytes(data)
    refused(model, tmp_path / "b.keras", "cannot be read")


def test_archive_names_that_are_not_text(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as file:
        file.writestr("é.txt", "x")
    (tmp_path / "a.keras").write_bytes((tmp_path / "a.keras").read_bytes().replace("é".encode(), b"\xff\xfe"))
    refused(seeded(models.mlp), tmp_path / "a.keras", "cannot be read")


def test_deeply_nested_groups(tmp_path):
    model = seeded(models.mlp)
    model.save_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5", "a") as file:
        file.create_group("/".join("x" * 200))
    refused(model, tmp_path / "a.weights.h5", "'x/x/.*…' in the file is nested too deep")


def test_many_long_paths(tmp_path, monkeypatch):
    monkeypatch.setattr("everstep.task.initial.keras_file._MOST_TEXT", 50_000)
    model = seeded(models.mlp)
    model.save_weights(tmp_path / "a.weights.h5")
    with h5py.File(tmp_path / "a.weights.h5", "a") as file:
        folder = file.create_group("x" * 1000)
        for number in range(100):
            folder.create_group(str(number))
    refused(model, tmp_path / "a.weights.h5", "far more than a model has")


@keras.saving.register_keras_serializable("tests")
class Particular(layers.Dense):
    """A layer that fails to load a kernel of fives."""

    def load_own_variables(self, store):
        if np.any(np.asarray(store["0"]) == 5.0):
            raise LookupError("no fives, please")
        super().load_own_variables(store)


def test_a_layer_that_fails_to_load(tmp_path):
    def net() -> keras.Model:
        model = keras.Sequential([keras.Input((3,)), layers.Normalization(), layers.Dense(3), Particular(1)])
        model.layers[0].adapt_mean.assign(np.random.default_rng().normal(size=3))
        model.layers[0].finalize_state()
        return model

    source, model = net(), net()
    source.layers[-1].kernel.assign(np.full((3, 1), 5.0))
    source.save_weights(tmp_path / "a.weights.h5")
    x = np.ones((2, 3), "float32")
    before = keras.ops.convert_to_numpy(model(x))
    refused(model, tmp_path / "a.weights.h5", "does not fit the model: no fives")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(x)), before)


def checkpoint(path, state) -> None:
    arrays.write(path, state, {"step": 1})
    manifest.write(path, Manifest(1, "them", 0.0, {}, {}, "0"))


@pytest.mark.parametrize("small", [0, parts.SMALL])
def test_partial_reads_return_the_same_arrays(tmp_path, monkeypatch, small):
    monkeypatch.setattr(parts, "SMALL", small)
    rng = np.random.default_rng(0)
    dtypes = ["float32", "float16", "float64", "int64", "uint32", "int8", "bool", ml_dtypes.bfloat16]
    state = {f"model/{i}/kernel": rng.normal(size=(3, i + 1)).astype(dtype) for i, dtype in enumerate(dtypes)}
    state |= {"optimizer/rate": np.float32(0.5), "model/none": np.zeros((0, 2), "float32")}
    checkpoint(tmp_path / "1", state)
    shapes = partial_read.shapes(tmp_path / "1")
    assert shapes == {key: array.shape for key, array in state.items() if array.size}
    for key, array in partial_read.read(tmp_path / "1", shapes).items():
        assert array.dtype == state[key].dtype
        np.testing.assert_array_equal(array, state[key])


def two_layers() -> keras.Model:
    return seeded(lambda: keras.Sequential([keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(4, name="b")]))


def test_a_checkpoint_of_a_run_with_a_short_array(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "SMALL", 0)
    model = two_layers()
    held = {f"model/{name}": np.ones(weight.shape, "float32") for name, weight in model_weights(model).items()}
    checkpoint(tmp_path / "1", held)
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{tmp_path}/1/state/"}).result()
    store.write(b"arrays.model/b/kernel/0.0", b"short").result()
    manifest.write(tmp_path / "1", Manifest(1, "them", 0.0, {}, {}, "0"))
    refused(model, tmp_path / "1", "cannot be used: .*model/b/kernel")


def test_a_checkpoint_of_a_run_with_too_few_small_arrays(tmp_path):
    model = two_layers()
    held = {f"model/{name}": np.ones(weight.shape, "float32") for name, weight in model_weights(model).items()}
    checkpoint(tmp_path / "1", held)
    os.truncate(tmp_path / "1" / "parts" / "0" / "data", 100)
    manifest.write(tmp_path / "1", Manifest(1, "them", 0.0, {}, {}, "0"))
    refused(model, tmp_path / "1", "cannot be used: .*model/b/kernel in parts/0 do not fit")


def test_a_truncated_tensorflow_checkpoint(tmp_path):
    model = two_layers()
    variables = {f"v{i}": tf.Variable(np.ones(w.shape, "float32"), name=w.path) for i, w in enumerate(model.weights)}
    tf.train.Checkpoint(**variables).write(str(tmp_path / "ckpt"))
    data = tmp_path / "ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:80])
    refused(model, tmp_path / "ckpt", "cannot be read")


def test_an_index_that_unpacks_to_too_much(tmp_path):
    """A small node that is full of zeros is refused; random bytes that begin like a node are accepted."""
    settings = {"max_inline_value_bytes": 1 << 20, "max_decoded_node_bytes": 2_000_000_000}
    spec = {"driver": "ocdbt", "base": f"file://{tmp_path}/bomb/", "config": settings}
    store, transaction = ts.KvStore.open(spec).result(), ts.Transaction()
    for number in range(60):
        store.with_transaction(transaction)[str(number)] = bytes(1 << 20)
    transaction.commit_sync()
    assert sum(file.stat().st_size for file in tmp_path.rglob("d/*")) < 1 << 16
    with pytest.raises(Damaged, match="decompress to more than 48 MiB"):
        partial_read._limit_index(tmp_path / "bomb")
    (tmp_path / "honest").mkdir()
    chance = b"\x28\xb5\x2f\xfd" + np.random.default_rng(0).bytes(1 << 16)
    (tmp_path / "honest" / "weights").write_bytes(chance * 20 + bytes(1 << 20))
    (tmp_path / "honest" / "empty").touch()
    partial_read._limit_index(tmp_path / "honest")


def test_log_lines_begin_with_the_key_of_the_path(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    source, model = seeded(models.mlp, 1), seeded(models.mlp, 2)
    source.save(tmp_path / "a.keras")
    load(model, str(tmp_path / "a.keras"), key="checkpoint_path", complete=True)
    assert "checkpoint_path: 4 of the model's 4 weights" in caplog.text
    assert "init_checkpoint" not in caplog.text
