"""Runs on record files: resumed, they end in the same bits."""

import json

import keras
import pytest
from record_files import decode, tf, write

import everstep as es
from everstep.data import InputReader
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.daily("torch")]  # where a stream is, no backend knows


def halves(features):
    """Draws random numbers, as parsers of images do; a run seeds TensorFlow before it builds its data."""
    x = tf.cast(features["id"], tf.float32)[None] / 20
    return x + tf.random.uniform([1]) / 100, x / 2


class Halves(es.Task):
    """Learns to halve a number, from record files."""

    def build_model(self):
        return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        hooks = {"decoder_fn": decode, "parser_fn": halves}
        return InputReader(params, **hooks).read(input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean(keras.ops.square(labels - model_outputs))

    def build_metrics(self, training=True):
        return [keras.metrics.MeanAbsoluteError(name="mae")]


def params(files, steps, **fields):
    data = {"input_path": files, "global_batch_size": 4, "shuffle_buffer_size": 6, **fields}
    config = es.ExperimentConfig()
    config.override({"task": {"train_data": data, "validation_data": data}})
    config.override({"trainer": {"train_steps": steps, "steps_per_loop": 4, "checkpoint_interval": 4}})
    return config


def run(folder, config, mode="train"):
    task = Halves(config.task)
    _, logs = es.run_experiment(task, config, str(folder), mode, export=False, verbose=False)
    return json.loads((folder / "run.json").read_text())["digest"], logs


@pytest.mark.parametrize(
    "fields", [{}, pytest.param({"cache": True}, marks=pytest.mark.full)], ids=["read again", "cached"]
)
def test_resumed_inside_an_epoch_to_the_same_bits(tmp_path, fields):
    files = write(tmp_path / "data")
    straight, _ = run(tmp_path / "straight", params(files, 12, **fields))
    run(tmp_path / "parts", params(files, 8, **fields))
    assert run(tmp_path / "parts", params(files, 12, **fields))[0] == straight


def test_evaluation_sees_every_sample(tmp_path):
    class Counting(Halves):
        def build_metrics(self, training=True):
            return [keras.metrics.Sum(name="seen")]

        def process_metrics(self, metrics, labels, model_outputs, **kwargs):
            metrics[0].update_state(keras.ops.ones_like(labels))

    config = params(write(tmp_path / "data"), 4)
    _, logs = es.run_experiment(Counting(config.task), config, str(tmp_path / "run"), export=False)
    assert logs["seen"] == 23


def test_a_glob_without_files_is_reported_before_training(tmp_path):
    pattern = f"{tmp_path}/none-*.tfrecord"
    config = params(pattern, 4)
    with raises_problem(key="task.train_data.input_path", received=pattern, reason="no file"):
        run(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()
