import time

import keras
import numpy as np
import pytest

import everstep
from everstep.engine import flops
from everstep.experiment import create_trainer
from everstep.run import cost as costs
from everstep.run.cost import Cost, count_parameters, peak_flops, steady_rate
from everstep.run.record import read
from everstep.task.classification import ClassificationTask

pytestmark = pytest.mark.backend

BATCH = 64


@pytest.fixture(autouse=True)
def counted_at_once(monkeypatch):
    monkeypatch.setattr(costs, "SECONDS_BEFORE_COUNTING", 0.0)


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


def cost_of(task, directory, mode="train", say=False, trainer_cls=None, train_steps=4):
    params = everstep.ExperimentConfig()
    data = {"train_data": {"global_batch_size": BATCH}, "validation_data": {"global_batch_size": 2 * BATCH}}
    trainer = {"train_steps": train_steps, "steps_per_loop": 2, "checkpoint_interval": 0}
    params.override({"trainer": trainer, "task": data})
    made = trainer_cls and create_trainer(params, task, train=True, evaluate=False, trainer_cls=trainer_cls)
    everstep.run_experiment(task, params, directory, mode, trainer=made, export=False, verbose=say, save_summary=False)
    return read(directory)["cost"]


def test_operations_of_dense_layers(tmp_path, capsys):
    cost = cost_of(Line(dense, (32,)), tmp_path, "train_and_eval", say=True)
    assert (cost["parameters"], cost["trainable_parameters"]) == (32 * 256 + 256 + 256 + 1,) * 2
    forward = 2 * BATCH * (32 * 256 + 256)
    # Backwards: gradients of both kernels, and of the inputs of the second layer alone.
    backward = 2 * BATCH * (32 * 256 + 256 + 256)
    assert cost["flops_per_train_step"] == pytest.approx(forward + backward, rel=0.1)
    if keras.backend.backend() == "torch":  # whose counter knows products alone
        assert cost["flops_per_train_step"] == forward + backward
    else:
        assert cost["flops_per_train_step"] > forward + backward
    assert cost["flops_per_inference_sample"] == pytest.approx(forward / BATCH, rel=0.05)
    assert cost["batch_size"] == BATCH
    assert cost["samples_per_second"] == pytest.approx(BATCH * cost["steps_per_second"])
    assert cost["utilisation"] is None
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("cost "))
    assert line.startswith("cost 8.71 k parameters, ")
    assert "MFLOPs a step of 64 samples" in line
    assert f"{16.9 if keras.backend.backend() == 'torch' else 17.4} kFLOPs to infer one" in line
    assert "samples/s" in line


@pytest.mark.full
def test_operations_of_convolutions(tmp_path):
    cost = cost_of(Line(convolutional, (12, 12, 1)), tmp_path)
    first, second, last = 10 * 10 * 8 * 9, 8 * 8 * 16 * 9 * 8, 8 * 8 * 16
    assert cost["flops_per_inference_sample"] == pytest.approx(2 * (first + second + last), rel=0.05)
    # The gradient of the images is not computed.
    assert cost["flops_per_train_step"] == pytest.approx(2 * BATCH * (2 * first + 3 * second + 3 * last), rel=0.1)


@pytest.mark.full
def test_a_loop_counts_as_often_as_it_runs_or_not_at_all(tmp_path):
    cost = cost_of(Line(recurrent, (25, 8)), tmp_path)
    step = 2 * BATCH * (8 * 64 + 64 * 64)
    for name, times in (("flops_per_inference_sample", 1 / BATCH), ("flops_per_train_step", 3)):
        assert cost[name] is None or cost[name] == pytest.approx(25 * step * times, rel=0.15)
    assert keras.backend.backend() == "tensorflow" or cost["flops_per_train_step"]


class Watched(everstep.Trainer):
    """Trains as any other, and records what it sees."""

    def train(self, num_steps, **call):
        return super().train(num_steps, **call)


class Classes(ClassificationTask):
    """A small perceptron on made-up digits."""

    def build_model(self):
        layers = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((784,)), *layers])

    def build_inputs(self, params, input_context=None):
        x = np.random.default_rng(0).normal(size=(2 * BATCH, 784)).astype("float32")
        return x, np.zeros(2 * BATCH, "int32")


def test_operations_under_a_trainer_of_ones_own_are_the_same_on_all_backends(tmp_path):
    cost = cost_of(Classes(), tmp_path, trainer_cls=Watched)
    products = 2 * BATCH * (2 * 784 * 32 + 3 * 32 * 10)
    if keras.backend.backend() == "torch":  # whose counter knows products alone
        assert cost["flops_per_train_step"] == products
        assert cost["flops_per_inference_sample"] == 2 * (784 * 32 + 32 * 10)
        return
    assert products < cost["flops_per_train_step"] < 1.1 * products
    # With Adam, the softmax and all: by XLA's analysis on every backend, which agree to 0.5 %.
    assert cost["flops_per_train_step"] == pytest.approx(6_852_500, rel=5e-3)
    assert cost["flops_per_inference_sample"] == pytest.approx(2 * (784 * 32 + 32 * 10) + 32 * 2 + 10, rel=2e-3)


@pytest.mark.full
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a graph is TensorFlow's")
def test_a_graph_is_counted_where_the_compiler_refuses_it(tmp_path):
    from everstep.engine import flops

    def pooled():
        layers = [keras.layers.MaxPooling1D(), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((32, 1)), keras.layers.Dense(64, use_bias=False), *layers])

    task = Line(pooled, (32, 1))
    trainer = create_trainer(everstep.ExperimentConfig(), task, train=True, evaluate=False)
    trainer.train(1)
    (loop,) = trainer.engine.backend._loops.values()
    assert not flops.is_for_xla(flops._loop_body(loop.graph))
    trainer.close()
    products = 2 * BATCH * (2 * 32 * 64 + 3 * 16 * 64)
    assert cost_of(task, tmp_path)["flops_per_train_step"] == pytest.approx(products, rel=0.5)


class InStages(everstep.ProgressivePolicy, Line):
    """Twice as wide from the third step on."""

    def __init__(self):
        super().__init__(dense, (32,))

    def num_stages(self):
        return 2

    def num_steps(self, stage):
        return 2

    def get_model(self, stage, old_model=None):
        return keras.Sequential([keras.Input((32,)), keras.layers.Dense(64 * 2**stage), keras.layers.Dense(1)])


def test_operations_of_the_last_stage(tmp_path, capsys):
    cost = cost_of(InStages(), tmp_path, say=True)
    assert cost["stages"] == 2
    assert cost["flops_per_train_step"] == pytest.approx(2 * BATCH * (2 * 32 * 128 + 3 * 128), rel=0.1)
    assert cost["steps_per_second"]
    assert cost["samples_per_second"] is None  # the stages' batches may differ
    assert " a step of 64 samples of the last stage, " in capsys.readouterr().err


def test_what_cannot_be_counted_does_not_fail_the_run(tmp_path):
    class Stubborn(Line):
        def inference_step(self, inputs, model):
            raise RuntimeError("not today")

        def samples_per_step(self, inputs):
            return 3 * len(inputs[0])

    cost = cost_of(Stubborn(dense, (32,)), tmp_path)
    assert cost["flops_per_inference_sample"] is None
    assert cost["flops_per_train_step"]
    assert cost["batch_size"] == 3 * BATCH  # as the task defines it


def test_a_short_run_counts_no_operations(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(costs, "SECONDS_BEFORE_COUNTING", 3600.0)
    cost = cost_of(Line(dense, (32,)), tmp_path, say=True)
    assert cost["flops_per_train_step"] is None
    assert cost["flops_per_inference_sample"] is None
    assert cost["steps_per_second"]
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("cost "))
    assert "FLOPs" not in line
    assert "samples/s" in line


def test_operations_are_counted_once_for_a_run_directory(tmp_path, monkeypatch):
    first = cost_of(Line(dense, (32,)), tmp_path)
    monkeypatch.setattr(costs.flops, "of_train_step", None)  # nothing is counted again
    second = cost_of(Line(dense, (32,)), tmp_path, train_steps=8)
    assert second["steps_per_second"] != first["steps_per_second"]
    assert second["flops_per_train_step"] == first["flops_per_train_step"] > 0
    assert second["flops_per_inference_sample"] == first["flops_per_inference_sample"] > 0


def test_counters_of_random_draws_are_no_parameters():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()])
    assert count_parameters(model) == (16, 8)


@pytest.mark.parametrize(
    ("device", "half", "peak"),
    [
        ("NVIDIA H200", True, 989e12),
        ("NVIDIA H100 80GB HBM3", True, 989e12),
        ("NVIDIA H100 PCIe", True, 756e12),
        ("NVIDIA H200 NVL", True, 835e12),
        ("NVIDIA GH200 480GB", True, 989e12),
        ("NVIDIA A100-SXM4-40GB", False, 156e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", False, None),
        ("NVIDIA RTX A1000", True, None),
        ("Tesla V100-PCIE-16GB", False, 14e12),
        ("Tesla V100-SXM2-16GB", False, 15.7e12),
        ("Tesla T4", True, 65e12),
        ("NVIDIA T400 4GB", True, None),
        ("GRID T4-8Q", True, None),
        ("TPU v4", False, 275e12),
        ("TPU v5 lite", True, 197e12),
        ("TPU v5p", True, 459e12),
        ("cpu", False, None),
        ("", True, None),
    ],
)
def test_peaks_of_devices(device, half, peak):
    assert peak_flops(device, half) == peak


def test_unknown_figures_are_not_printed():
    assert str(Cost(parameters=10, trainable_parameters=10)) == "10 parameters"
    known = Cost(1_320_000, 1_320_000, 1.64e10, None, 32, 12.34, 394.9, "NVIDIA H100", 2, 0.412)
    assert str(known) == (
        "1.32 M parameters, 16.4 GFLOPs a step of 32 samples, 12.3 steps/s, 395 samples/s, "
        "41.2% of the peak of 2 × NVIDIA H100"
    )


class SlowToCompile(Line):
    """A task whose step takes a while to be traced, and no time to be run."""

    def train_step(self, inputs, model, optimizer, metrics):
        if keras.backend.backend() != "torch":  # where nothing is traced
            time.sleep(0.3)
        return super().train_step(inputs, model, optimizer, metrics)


def test_steps_that_compile_do_not_count_as_speed(tmp_path):
    trainers = []

    class Kept(everstep.Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            trainers.append(self)

    cost = cost_of(SlowToCompile(dense, (32,)), tmp_path, trainer_cls=Kept)
    steps, seconds = trainers[0].warmup
    assert 1 <= steps < 4, "the first call, and no more than one for the second shape"
    assert seconds >= (0.0 if keras.backend.backend() == "torch" else 0.3)
    assert cost["steps_per_second"] > 0


def test_the_speed_is_that_of_the_steps_which_compile_nothing():
    assert steady_rate((36, 13.4), (1, 11.0)) == pytest.approx(35 / 2.4)
    assert steady_rate((1, 5.0), (1, 5.0)) is None
    assert steady_rate((0, 0.0), (0, 0.0)) is None


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the others count no program of JAX")
def test_a_loop_in_a_loop_is_lowered_once(monkeypatch):
    """Lowering is what counting costs: a program, the body of its loop, and the body of the loop in that."""
    import jax

    lowered, count = [], flops._counted_once
    monkeypatch.setattr(flops, "_counted_once", lambda traced: lowered.append(traced) or count(traced))

    def inner(state, row):
        return state + row, None

    def outer(state, rows):
        return jax.lax.scan(inner, state * state, rows)[0], None

    traced = jax.jit(lambda state, data: jax.lax.scan(outer, state, data)[0]).trace(np.ones(8), np.ones((3, 5, 8)))
    found = flops.of_jax_program(traced)
    assert len(lowered) == 3
    assert found == pytest.approx(3 * (8 + 5 * 8), rel=0.35)  # XLA also counts the steps of the loops


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the others count no program of JAX")
def test_products_are_counted_without_compiling():
    import jax

    def step(images, kernel, weights):
        rows = jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID").reshape(2, -1)
        return jax.lax.scan(lambda state, _: (state + rows @ weights, None), np.zeros((2, 4), "float32"), None, 5)[0]

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((2, 3, 6, 6), (8, 3, 3, 3), (8 * 4 * 4, 4))]
    convolution, product = 2 * (2 * 8 * 4 * 4) * 3 * 3 * 3, 2 * 2 * (8 * 4 * 4) * 4
    assert flops.of_products(jax.make_jaxpr(step)(*shapes).jaxpr) == convolution + 5 * product
