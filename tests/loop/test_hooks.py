"""The learning rate of a resumed run, as a hook."""

from types import SimpleNamespace

import keras
import pytest

from everstep.loop.hooks import LearningRate

pytestmark = pytest.mark.backend


@pytest.mark.parametrize("key", ["rate", "told"], ids=["now", "of older versions"])
@pytest.mark.parametrize(("saved", "rate"), [(0.1, 0.5), (0.5, 0.025)], ids=["changed", "as before"])
def test_a_rate_that_was_changed_between_two_attempts_is_applied(key, saved, rate):
    """0.025 is what a callback had lowered it to."""
    optimizer, calls = keras.optimizers.SGD(0.025), []
    trainer = SimpleNamespace(optimizer=optimizer, push=lambda: calls.append("push"), pull=lambda: calls.append("pull"))
    hook = LearningRate(0.5)
    hook.setup(SimpleNamespace(trainer=trainer))
    hook.restore({}, {key: saved})
    assert float(keras.ops.convert_to_numpy(optimizer.learning_rate)) == pytest.approx(rate)
    assert calls == (["push", "pull"] if saved != 0.5 else [])


def test_its_own_checkpoints():
    assert LearningRate(0.5).state() == ({}, {"rate": 0.5})
    assert LearningRate(None).state() == ({}, {})
