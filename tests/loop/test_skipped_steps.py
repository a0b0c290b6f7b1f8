"""One warning for windows in which no step changes the weights."""

import logging

import keras
import pytest

from everstep.loop.recovery import SkippedUpdates
from everstep.task.optim.ema import ExponentialMovingAverage
from everstep.task.optim.loss_scale import UPDATES, scaling_loss
from loop.samples import TinyTask, run, tiny_params

pytestmark = pytest.mark.slow


def warned_after(caplog, skipped, *windows):
    """Returns the number of warnings after each window, given as its last step and the updates so far."""
    counts = []
    with caplog.at_level(logging.WARNING, logger="everstep.loop.recovery"):
        for step, updates in windows:
            skipped.watch(step, {UPDATES: float(updates)})
            counts.append(len(caplog.records))
    return counts


def scaling(**settings):
    optimizer = scaling_loss(ExponentialMovingAverage(keras.optimizers.SGD(0.1, **settings)), 2.0**40)
    optimizer.build([keras.Variable([1.0])])
    return optimizer


def test_one_warning_for_windows_without_an_update(caplog):
    assert warned_after(caplog, SkippedUpdates(scaling()), (4, 0), (8, 0)) == [1, 1]
    assert "steps 1 to 4 changed no weights" in caplog.text
    assert "lower runtime.loss_scale" in caplog.text


def test_steps_that_are_left_out_now_and_then_are_how_a_scale_is_found(caplog):
    assert warned_after(caplog, SkippedUpdates(scaling()), (4, 1), (8, 5), (12, 5)) == [0, 0, 1]
    assert "steps 9 to 12 changed no weights" in caplog.text


def test_a_resumed_run_counts_from_its_step(caplog):
    optimizer = scaling()
    optimizer.inner_optimizer.inner_optimizer.iterations.assign(7)
    assert warned_after(caplog, SkippedUpdates(optimizer, 8), (12, 7)) == [1]
    assert "steps 9 to 12 changed no weights" in caplog.text


def test_gradients_that_are_collected_are_no_reason(caplog):
    assert warned_after(caplog, SkippedUpdates(scaling(gradient_accumulation_steps=8)), (4, 0), (8, 1), (12, 1)) == [
        0,
        0,
        0,
    ]
    assert warned_after(caplog, SkippedUpdates(scaling(gradient_accumulation_steps=8)), (4, 0), (8, 0)) == [0, 1]


@pytest.mark.parametrize("optimizer", [None, keras.optimizers.SGD(0.1)])
def test_others_leave_out_nothing(caplog, optimizer):
    skipped = SkippedUpdates(optimizer)
    skipped.watch(4, {"training_loss": 1.0})
    assert not caplog.records


@pytest.mark.backend
@pytest.mark.parametrize("scale", [2.0**40, "dynamic"])
def test_a_run_that_does_not_learn_warns(tmp_path, caplog, scale):
    params = tiny_params()
    params.override({"runtime": {"mixed_precision_dtype": "float16", "loss_scale": scale}})

    class Steep(TinyTask):
        def build_losses(self, labels, model_outputs, aux_losses=None):
            loss = keras.ops.cast(super().build_losses(labels, model_outputs, aux_losses), "float32")
            steep = keras.ops.sum(keras.ops.cast(model_outputs, "float32")) * (1e30 if scale == "dynamic" else 0.0)
            return loss + steep - keras.ops.stop_gradient(steep)

    with caplog.at_level(logging.WARNING, logger="everstep.loop.recovery"):
        run("train", tmp_path / "run", task=Steep(), params=params)
    warned = [record.getMessage() for record in caplog.records if record.name == "everstep.loop.recovery"]
    assert [line.split(":")[0] for line in warned] == ["steps 1 to 4 changed no weights"]
