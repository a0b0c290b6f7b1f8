"""On an accelerator the Keras objects have the engine's arrays: the contract of the state holds there, too."""

import keras
import pytest

from everstep.testing import models
from everstep.testing.engines import state
from everstep.testing.tasks import Regression, running, seeded

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="the other backends have one copy of the state"),
]

NOT_ON_A_CPU = state.check_pushed_arrays_are_never_written_to  # NumPy's views of a CPU's arrays are no copies
DAILY = [state.check_pull_sees_changes, state.check_push_and_pull_change_nothing]


def shared(task, model, optimizer=None, **options):
    """Creates the engine as on an accelerator; JAX donates arrays on a CPU, too."""
    from everstep.engine.engine import Engine
    from everstep.engine.jax import JaxBackend
    from everstep.engine.protocol import EngineOptions

    class Shared(JaxBackend):
        def _place_variables(self):
            super()._place_variables()
            self._is_shared = [True] * len(self._state_variables)

    return Engine(task, model, optimizer, Shared(EngineOptions(**options)))


@pytest.mark.parametrize(
    "check",
    [
        check if check in DAILY else pytest.param(check, marks=pytest.mark.full)
        for check in state.CHECKS
        if check is not NOT_ON_A_CPU
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_state(check):
    check(shared)


def test_the_state_exists_once():
    """After a push the variables have the arrays of the engine; after the next steps those are gone until a push."""
    with running(shared, Regression(), seeded(models.mlp)) as rig:
        rig.run(2)
        rig.engine.push()
        kernel = rig.engine.model.trainable_variables[0]
        assert any(kernel.value is value for value in rig.engine.backend._values)
        rig.run(2)
        assert kernel.value.is_deleted()
        rig.engine.push()
        assert not kernel.value.is_deleted()
