"""Which variables hold NaN or an infinity."""

import keras
import numpy as np
import pytest

from everstep.engine import non_finite
from everstep.engine.backend import create_engine
from everstep.testing.models import mlp
from everstep.testing.tasks import Regression, running, seeded

pytestmark = [pytest.mark.backend, pytest.mark.gpu]


def test_arrays_with_nan_or_an_infinity_are_named():
    state = {"a": np.ones(3), "b": np.array([1.0, np.nan]), "c": np.array(3), "d": np.float16([np.inf])}
    assert non_finite(state) == ["b", "d"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_engine_names_the_variables_that_are_not_finite(bad):
    with running(create_engine, Regression(), seeded(mlp)) as rig:
        rig.run(2)
        assert rig.engine.non_finite() == []
        rig.engine.push()
        kernel = rig.engine.model.trainable_variables[0]
        values = keras.ops.convert_to_numpy(kernel).copy()
        values.flat[-1] = bad
        kernel.assign(values)
        rig.engine.pull()
        (key,) = rig.engine.non_finite()
        assert rig.engine.variables[key] is kernel
        assert rig.engine.non_finite(rig.engine.own_state()) == [key]
