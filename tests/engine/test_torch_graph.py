"""Recorded steps on PyTorch: the whole contract of an engine, the same bits as eagerly, and what runs eagerly instead.

There is no GPU here, so `OperationList` takes the place of CUDA graphs; the rest is the code that runs on a GPU.
"""

import keras
import pytest

pytestmark = pytest.mark.backend

if keras.backend.backend() != "torch":
    pytest.skip("only PyTorch has recorded steps", allow_module_level=True)

from tests.engine.operation_list import RecordingEngine  # noqa: E402

from everstep.engine.backend import create_engine  # noqa: E402
from everstep.testing import engines, models  # noqa: E402
from everstep.testing.engines.running import check_same_bits_for_every_split  # noqa: E402
from everstep.testing.tasks import Regression, running, seeded  # noqa: E402


@pytest.mark.parametrize("check", engines.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_engine(check):
    check(RecordingEngine)


@pytest.mark.parametrize("kind", models.MODELS)
def test_same_bits_for_every_split(kind):
    check_same_bits_for_every_split(RecordingEngine, kind)


@pytest.mark.parametrize("kind", models.MODELS)
def test_same_bits_as_eagerly(kind):
    digests, logs = set(), []
    for make in (create_engine, RecordingEngine):
        model = seeded(models.MODELS[kind])
        with running(make, Regression(), model, long_calls=True) as rig:
            assert rig.engine.is_eager == (make is create_engine), rig.engine.describe()
            rig.run(7, 5)
            logs.append([rig.engine.read("train"), rig.evaluate(models.samples(model, 10))])
            rig.run(3)
            digests.add(rig.digest())
    assert len(digests) == 1
    assert logs[0] == logs[1]
