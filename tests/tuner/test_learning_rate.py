"""The learning-rate range test: what a curve shows, and that each step has its rate."""

import csv
import io
import itertools

import keras
import numpy as np
import pytest

import everstep as es
from everstep.errors import UsageError
from everstep.testing.tasks import Regression
from everstep.tuner.learning_rate import RangeTest, draw, geometric, rounded
from everstep.tuner.trials import range_test
from loop.samples import TinyTask, tiny_params

pytestmark = pytest.mark.slow


def curve(loss_at, steps=100, first=1e-7, last=10.0):
    test = RangeTest()
    for rate in geometric(first, last, steps):
        test.add(rate, float(loss_at(rate)))
        if test.diverged:
            break
    return test


def valley(rate):
    """Flat, then down around 1e-3, then up beyond 1e-1."""
    return 2.5 - 2 / (1 + (1e-3 / rate) ** 2) + min((rate / 0.1) ** 3, 1e6)


def test_steepest_descent():
    test = curve(valley)
    assert 5e-4 < test.rates[test.steepest()] < 2e-3
    assert test.diverged
    assert 0.1 < test.rates[-1] < 0.5


def test_noise_does_not_move_it_far():
    for seed, scale in itertools.product(range(30), (0.1, 0.3)):
        noise = np.random.default_rng(seed)
        test = curve(lambda rate: valley(rate) + noise.normal(scale=scale))  # noqa: B023 - called at once
        assert 2e-4 < test.rates[test.steepest()] < 4e-3


@pytest.mark.parametrize("loss_at", [lambda rate: 1.0, lambda rate: 1 + np.log10(rate / 1e-7)])
def test_a_loss_that_never_falls(loss_at):
    assert curve(loss_at).steepest() is None


def test_noise_alone_does_not_fall():
    noise = np.random.default_rng(0)
    assert [curve(lambda rate: 2 + noise.normal(scale=0.2)).steepest() for _ in range(20)] == [None] * 20


def test_losses_that_are_not_finite():
    test = curve(lambda rate: valley(rate) if rate < 0.01 else float("nan"))
    assert test.diverged
    assert np.isnan(test.losses[-1])
    assert np.isfinite(test.smoothed()).all()
    assert 5e-4 < test.rates[test.steepest()] < 2e-3
    at_once = curve(lambda rate: float("nan"))
    assert (len(at_once.losses), at_once.steepest()) == (1, None)


def test_table_and_picture():
    test = curve(valley)
    rows = list(csv.DictReader(io.StringIO(test.table())))
    assert [float(row["learning_rate"]) for row in rows] == pytest.approx(test.rates, rel=1e-4)
    assert set(rows[0]) == {"step", "learning_rate", "loss", "smoothed"}
    pytest.importorskip("matplotlib")
    assert draw(test, "title", "png").startswith(b"\x89PNG")
    assert b"steepest" in draw(test, "title", "svg") or b"<svg" in draw(test, "title", "svg")
    assert draw(curve(lambda rate: float("nan")), "", "png")


def test_rounding():
    assert [rounded(rate) for rate in (0.00131826, 9.96e-7, 3.0)] == [0.0013, 1e-6, 3.0]


# -- on a model ------------------------------------------------------------------------------------------------------


class Sliding(Regression):
    """The loss is the one weight, so each loss is a sum of the rates of all steps before."""

    def build_model(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])

    def build_inputs(self, params, input_context=None):
        x = np.zeros((64, 4), "float32")
        x[:, 0] = 1
        return x, x[:, :1]

    def build_losses(self, labels, model_outputs, aux_losses=None, sample_weight=None):
        return keras.ops.mean(model_outputs) + 5.0


SGD = {"type": "sgd", "sgd": {}}
SCHEDULES = {
    "constant": {"type": "constant", "constant": {"learning_rate": 0.5}},
    "cosine": {"type": "cosine", "cosine": {"initial_learning_rate": 0.5, "decay_steps": 3}},
}


@pytest.mark.backend
@pytest.mark.parametrize(
    ("schedule", "more"),
    [
        ("constant", {}),
        ("cosine", {"ema": {"average_decay": 0.9}, "warmup": {"type": "linear", "linear": {"warmup_steps": 5}}}),
    ],
)
def test_each_step_has_its_rate(schedule, more):
    params = tiny_params(optimizer_config={"optimizer": SGD, "learning_rate": SCHEDULES[schedule], **more})
    test = range_test(params, Sliding(), 1e-3, 1.0, 12)
    rates = geometric(1e-3, 1.0, 12)
    assert test.rates == rates
    assert test.losses == pytest.approx(5 - np.concatenate([[0], np.cumsum(rates)[:-1]]), rel=1e-4)


def test_under_a_loss_scale():
    params = tiny_params(optimizer_config={"optimizer": SGD, "learning_rate": SCHEDULES["cosine"]})
    params.override({"runtime": {"mixed_precision_dtype": "float16", "loss_scale": 8.0}})
    test = range_test(params, Sliding(), 1e-2, 1.0, 10)
    wanted = 5 - np.concatenate([[0], np.cumsum(geometric(1e-2, 1.0, 10))[:-1]])
    assert test.losses == pytest.approx(wanted, rel=1e-2)


class TwoOptimizers(TinyTask):
    """Has an optimizer of its own."""

    def build_model(self):
        self.critic_optimizer = keras.optimizers.Adam()
        return super().build_model()


def test_several_optimizers_are_refused_by_name():
    with pytest.raises(UsageError) as error:
        range_test(tiny_params(), TwoOptimizers(), 1e-3, 1.0, 12)
    assert error.value.key == "TwoOptimizers.critic_optimizer"
    assert error.value.reason.startswith("the task has optimizers beside the configured one")


class Stages(es.ProgressivePolicy, TinyTask):
    """Leaves its first stage after two steps."""

    def num_stages(self):
        return 2

    def num_steps(self, stage):
        return 2

    def get_model(self, stage, old_model=None):
        return self.build_model()


def test_a_task_in_stages_stays_in_its_first():
    test = range_test(tiny_params(), Stages(), 1e-5, 1e-3, 10)
    assert len(test.losses) == 10
