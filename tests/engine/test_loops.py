"""How each backend runs its steps, as recorded by `Engine.describe`."""

import keras
import pytest

from everstep.engine.backend import create_engine
from everstep.testing import models
from everstep.testing.tasks import Regression, running, seeded

pytestmark = pytest.mark.backend

LOOPS = {
    "tensorflow": dict.fromkeys(models.MODELS, "while"),
    "jax": {**dict.fromkeys(models.MODELS, "scan"), "cnn": "single"},
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
