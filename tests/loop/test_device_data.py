"""`cache: device`: arrays live on the device, and a run is the same as with data on the host."""

import json
import logging

import keras
import numpy as np
import pytest

import everstep as es
from everstep.data.arrays import ArrayStream
from everstep.engine import device_data
from everstep.engine import device_names as devices
from everstep.engine import engine as engines
from everstep.experiment import create_trainer
from everstep.run.resume_checks import ChangeRefused
from everstep.testing.problems import raises_problem
from everstep.testing.reliability.nan_injection import Spoiled

from .samples import TinyTask, run, tiny_params

pytestmark = pytest.mark.backend

X, Y = np.random.default_rng(0).normal(size=(50, 4)).astype("float32"), np.arange(50) % 3


def params(cache, **trainer):
    config = tiny_params(**trainer)
    config.override({"task": {"train_data": {"cache": cache}, "validation_data": {"cache": cache}}})
    return config


def record(directory):
    return json.loads((directory / "run.json").read_text())


@pytest.fixture
def gpu(monkeypatch):
    """Pretends that this machine has a GPU with so much free memory."""

    def pretend(free):
        monkeypatch.setattr(devices, "has_gpu", lambda: True)
        monkeypatch.setattr(devices, "free_bytes", lambda: free)

    return pretend


def test_a_run_may_change_between_host_and_device(tmp_path, capfd):
    for first, second in (("device", "device"), ("host", "device"), ("device", "auto"), (False, "host")):
        directory = tmp_path / f"{first}-{second}"
        run("train_and_eval", directory, params=params(first, train_steps=8))
        run("train_and_eval", directory, params=params(second, train_steps=20), verbose=True)
        found = record(directory)
        assert found["environment"]["data_on_device"] == (
            {"train": 44 * 5 * 4, "validation": 13 * 5 * 4} if second == "device" else {}
        )
    records = [record(directory) for directory in tmp_path.iterdir()]
    assert len({found["digest"] for found in records}) == 1
    assert len({found["metrics"]["validation"]["validation_loss"] for found in records}) == 1
    shown = capfd.readouterr().err
    assert "train data is on the device: 880 bytes" in shown
    assert "validation data is on the device: 260 bytes" in shown


def test_a_change_that_concerns_record_files_is_refused(tmp_path):
    run("train", tmp_path, params=params("auto", train_steps=4))
    with pytest.raises(ChangeRefused) as error:
        run("train", tmp_path, params=params(True, train_steps=8))
    assert error.value.keys == ["task.train_data.cache"]


def test_on_a_cpu_auto_is_the_host():
    trainer = create_trainer(params("auto"), TinyTask(), train=True, evaluate=True)
    assert trainer.data_on_device == {}
    trainer.close()


@pytest.mark.parametrize(
    ("free", "kinds"),
    [(10_000, ["train", "validation"]), (4_000, ["train"]), (1200, ["validation"]), (1000, []), (None, [])],
)
def test_auto_uses_a_share_of_the_free_memory_of_a_gpu(gpu, free, kinds):
    gpu(free)
    trainer = create_trainer(params("auto"), TinyTask(), train=True, evaluate=True)
    assert list(trainer.data_on_device) == kinds
    assert sum(trainer.data_on_device.values()) <= device_data.SHARE * (free or 0)
    trainer.train(3)
    trainer.evaluate()
    trainer.close()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="PyTorch counts on a GPU, TensorFlow does not count")
def test_data_stays_on_the_host_where_steps_hide_its_copy(gpu, monkeypatch):
    gpu(10**9)
    monkeypatch.setattr(engines, "FLOPS_PER_SECOND", 100.0)  # a step of 8 samples takes many seconds then
    trainer = create_trainer(params("auto"), TinyTask(), train=True, evaluate=True)
    assert trainer.data_on_device == {}
    trainer.close()
    trainer = create_trainer(params("device"), TinyTask(), train=True, evaluate=False)
    assert list(trainer.data_on_device) == ["train"]
    trainer.close()


def test_booleans_keep_arrays_on_the_host(gpu):
    gpu(10**9)
    for cache in (True, False, "host"):
        trainer = create_trainer(params(cache), TinyTask(), train=True, evaluate=True)
        assert trainer.data_on_device == {}
        trainer.close()


class Batches(TinyTask):
    def build_inputs(self, params, input_context=None):
        x, y = super().build_inputs(params)
        return lambda: iter([(x[:8], y[:8])])


class Own(ArrayStream):
    """A stream of the user's own, which may change its batches."""


class OwnStream(TinyTask):
    def build_inputs(self, params, input_context=None):
        return Own(super().build_inputs(params), 8, repeat=True)


@pytest.mark.parametrize(("task", "reason"), [(Batches, "comes from IterableStream"), (OwnStream, "comes from Own")])
def test_data_that_is_not_arrays_cannot_live_there(task, reason, gpu):
    with raises_problem(key="task.train_data.cache", received="device", reason=reason) as error:
        create_trainer(params("device"), task(), train=True, evaluate=False)
    assert (error.value.key, error.value.problems[0].received) == ("task.train_data.cache", "device")
    gpu(10**9)
    trainer = create_trainer(params("auto"), task(), train=True, evaluate=False)
    assert trainer.data_on_device == {}
    trainer.close()


def test_text_cannot_live_there():
    assert "only numbers" in device_data.why_not(ArrayStream((np.array(["a", "b"]), np.zeros(2)), 1))


def test_too_little_memory_is_an_error(gpu):
    gpu(800)
    with raises_problem(
        key="task.train_data.cache",
        received="device",
        reason="the arrays take 880 bytes, and 800 bytes of device memory are free",
    ):
        create_trainer(params("device"), TinyTask(), train=True, evaluate=False)


def test_overfitting_a_few_batches(tmp_path):
    for cache in ("device", "host"):
        run("train", tmp_path / cache, params=params(cache, overfit_batches=2))
    assert record(tmp_path / "device")["digest"] == record(tmp_path / "host")["digest"]


def test_limited_data(tmp_path):
    for cache in ("device", "host"):
        config = params(cache)
        config.override({"task": {"train_data": {"limit_batches": 3}, "validation_data": {"limit_batches": 2}}})
        run("train_and_eval", tmp_path / cache, params=config)
    one, other = (record(tmp_path / cache) for cache in ("device", "host"))
    assert one["digest"] == other["digest"]
    assert one["metrics"]["validation"]["validation_loss"] == other["metrics"]["validation"]["validation_loss"]


def test_bad_batches_are_skipped(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    skipped = {}
    for cache in ("device", "host"):
        trainer = {"train_steps": 30, "steps_per_loop": 5, "checkpoint_interval": 10, "recovery_max_trials": 1}
        config = es.ExperimentConfig(
            {
                "trainer": {**trainer, "optimizer_config": {"optimizer": {"type": "sgd"}}},
                "task": {"train_data": {"global_batch_size": 10, "cache": cache}},
            }
        )
        caplog.clear()
        es.run_experiment(Spoiled(config.task, "loss", 204), config, tmp_path / cache, "train", verbose=False)
        skipped[cache] = (
            [text for text in caplog.messages if "skipping batch" in text],
            record(tmp_path / cache)["digest"],
        )
    assert skipped["device"] == skipped["host"]
    assert len(skipped["device"][0]) == 1


def dense_classifier():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    "given", [{}, {"class_weight": {0: 2.0}}, {"sample_weight": np.arange(50) / 50}, {"callbacks": [EachBatch()]}]
)
def test_fit_profits_and_gives_the_same(gpu, given):
    histories = []
    for free in (None, 10**9):
        gpu(free)
        model = dense_classifier()
        histories.append(
            es.fit(model, X, Y, 8, 3, verbose=0, validation_split=0.2, seed=1, **given).history
            | {"weights": model.get_weights()}
        )
    assert str(histories[0]) == str(histories[1])


def test_fit_on_other_numbers_of_samples_does_not_compile_for_each(gpu):
    gpu(10**9)
    model, compiled = dense_classifier(), []
    for size in (48, 40, 32, 24, 48, 40):
        es.fit(model, X[:size], Y[:size], 8, verbose=0)
        compiled.append(vars(model)["_everstep_kept"].engine.compilations)
    assert compiled[1:] == [compiled[1]] * 5
