"""How each backend runs its steps, as recorded by `Engine.describe`."""

import contextlib

import keras
import pytest

from everstep.data.arrays import ArrayStream
from everstep.engine.backend import create_engine
from everstep.testing import models
from everstep.testing.tasks import Regression, running, seeded

pytestmark = pytest.mark.backend

LOOPS = {
    "tensorflow": dict.fromkeys(models.MODELS, "while"),
    "jax": {**dict.fromkeys(models.MODELS, "while"), "cnn": "single"},
    "torch": dict.fromkeys(models.MODELS, "eager"),
}


@pytest.mark.parametrize("kind", models.MODELS)
def test_loop_of_each_model(kind):
    engine = create_engine(Regression(), seeded(models.MODELS[kind]), keras.optimizers.SGD())
    x, y = models.samples(engine.model, 4)
    engine.build((x, y), (x, y))
    described = engine.describe()
    assert described["loop"] == LOOPS[keras.backend.backend()][kind]
    assert described["device"] in ("cpu", "gpu")


def test_a_cnn_on_jax_runs_in_single_calls():
    with running(create_engine, Regression(), seeded(models.cnn), long_calls=True) as rig:
        calls = []
        rig.engine.run(rig.feed, 7, lambda done: calls.append(done) or True)
    assert calls == {"tensorflow": [7], "torch": [7], "jax": [1, 2, 3, 4, 5, 6, 7]}[keras.backend.backend()]


def test_the_first_bad_step_is_unknown_where_it_is_not_counted(monkeypatch):
    """Not a number of the logs, such as this one."""

    class Logs(Regression):
        def build_metrics(self, training=True):
            return []

        def train_step(self, inputs, model, optimizer, metrics):
            logs = super().train_step(inputs, model, optimizer, metrics)
            return {**logs, "learning_rate": logs["loss"], "score": 0.0 * logs["loss"] - 5.0}

    engine = create_engine(Logs(), seeded(models.mlp), keras.optimizers.SGD())
    monkeypatch.setattr(type(engine), "_sees_whole_loss", False)
    x, y = models.samples(engine.model, 8)
    engine.build((x[:4], y[:4]))
    with contextlib.closing(engine.feed(ArrayStream((x, y), 4, shuffle=False))) as feed:
        engine.run(feed, 2)
    assert engine.read_bad_step_later()() is None
