import keras
import numpy as np
import pytest

import everstep
from everstep.run.cost import Cost, count_parameters
from everstep.run.peaks import peak_flops
from everstep.run.record import read

pytestmark = pytest.mark.backend

BATCH = 64


class Line(everstep.Task):
    """A task on arrays, with the model it is given."""

    def __init__(self, build, shape):
        super().__init__()
        self.build_model, self.shape = build, shape

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(2 * BATCH, *self.shape)).astype("float32")
        return x, np.zeros((2 * BATCH, 1), "float32")

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.ops.mean((labels - model_outputs) ** 2)


def dense():
    return keras.Sequential([keras.Input((32,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])


def convolutional():
    layers = [keras.layers.Conv2D(8, 3), keras.layers.Conv2D(16, 3), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((12, 12, 1)), *layers])


def recurrent():
    return keras.Sequential([keras.Input((25, 8)), keras.layers.SimpleRNN(64), keras.layers.Dense(1)])


def cost_of(task, directory, mode="train", say=False):
    params = everstep.ExperimentConfig()
    data = {"global_batch_size": BATCH}
    trainer = {"train_steps": 4, "steps_per_loop": 2, "checkpoint_interval": 0}
    params.override({"trainer": trainer, "task": {"train_data": data, "validation_data": data}})
    everstep.run_experiment(None, task, mode, params, directory, export=False, verbose=say, save_summary=False)
    return read(directory)["cost"]


def test_operations_of_dense_layers(tmp_path, capsys):
    cost = cost_of(Line(dense, (32,)), tmp_path, "train_and_eval", say=True)
    assert (cost["parameters"], cost["trainable_parameters"]) == (32 * 256 + 256 + 256 + 1,) * 2
    forward = 2 * BATCH * (32 * 256 + 256)
    # Backwards: gradients of both kernels, and of the inputs of the second layer alone.
    backward = 2 * BATCH * (32 * 256 + 256 + 256)
    assert cost["flops_per_train_step"] == pytest.approx(forward + backward, rel=0.1)
    assert cost["flops_per_train_step"] > forward + backward
    assert cost["flops_per_inference_step"] == pytest.approx(forward, rel=0.05)
    assert cost["batch_size"] == BATCH
    assert cost["samples_per_second"] == pytest.approx(BATCH * cost["steps_per_second"])
    assert cost["utilisation"] is None
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("cost "))
    assert line.startswith("cost 8.71 k parameters, ")
    assert "FLOPs a step of 64 samples" in line
    assert "samples/s" in line


@pytest.mark.full
def test_operations_of_convolutions(tmp_path):
    cost = cost_of(Line(convolutional, (12, 12, 1)), tmp_path)
    first, second, last = 10 * 10 * 8 * 9, 8 * 8 * 16 * 9 * 8, 8 * 8 * 16
    assert cost["flops_per_inference_step"] == pytest.approx(2 * BATCH * (first + second + last), rel=0.05)
    # The gradient of the images is nobody's business.
    assert cost["flops_per_train_step"] == pytest.approx(2 * BATCH * (2 * first + 3 * second + 3 * last), rel=0.1)


@pytest.mark.full
def test_a_loop_counts_as_often_as_it_runs_or_not_at_all(tmp_path):
    cost = cost_of(Line(recurrent, (25, 8)), tmp_path)
    step = 2 * BATCH * (8 * 64 + 64 * 64)
    for name, times in (("flops_per_inference_step", 1), ("flops_per_train_step", 3)):
        assert cost[name] is None or cost[name] == pytest.approx(25 * step * times, rel=0.15)
    assert keras.backend.backend() == "tensorflow" or cost["flops_per_train_step"]


def test_what_cannot_be_counted_does_not_fail_the_run(tmp_path):
    class Stubborn(Line):
        def inference_step(self, inputs, model):
            raise RuntimeError("not today")

    cost = cost_of(Stubborn(dense, (32,)), tmp_path)
    assert cost["flops_per_inference_step"] is None
    assert cost["flops_per_train_step"]


def test_counters_of_random_draws_are_no_parameters():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()])
    assert count_parameters(model) == (16, 8)


@pytest.mark.parametrize(
    ("device", "half", "peak"),
    [
        ("NVIDIA H200", True, 989e12),
        ("NVIDIA H100 80GB HBM3", True, 989e12),
        ("NVIDIA H100 PCIe", True, 756e12),
        ("NVIDIA A100-SXM4-40GB", False, 156e12),
        ("Tesla V100-SXM2-16GB", False, 15.7e12),
        ("Tesla T4", True, 65e12),
        ("TPU v4", False, 275e12),
        ("TPU v5 lite", True, 197e12),
        ("TPU v5p", True, 459e12),
        ("cpu", False, None),
        ("", True, None),
    ],
)
def test_peaks_of_devices(device, half, peak):
    assert peak_flops(device, half) == peak


def test_what_is_unknown_is_not_said():
    assert str(Cost(parameters=10, trainable_parameters=10)) == "10 parameters"
    known = Cost(1_320_000, 1_320_000, 1.64e10, None, 32, 12.34, 394.9, "NVIDIA H100", 2, 0.412)
    assert str(known) == (
        "1.32 M parameters, 16.4 GFLOPs a step of 32 samples, 12.3 steps/s, 395 samples/s, "
        "41.2% of the peak of 2 × NVIDIA H100"
    )
