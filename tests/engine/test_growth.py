"""What many variables cost before the first step, counted in calls: seconds depend on the machine."""

import functools

import keras
import numpy as np
import pytest

from everstep.engine import state as states
from everstep.engine.backend import create_engine
from everstep.engine.probe import updates_skipped
from everstep.testing import models
from everstep.testing.tasks import Regression, running, seeded

pytestmark = [
    pytest.mark.backend,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="only on JAX a step is traced before it is compiled"),
]


class CountedDict(dict):
    """A dict that counts how often it is asked for a key."""

    asked = 0

    def __contains__(self, key):
        self.asked += 1
        return super().__contains__(key)


@pytest.fixture
def updates(monkeypatch):
    """The paths of the variables whose updates Adam was asked for."""
    paths: list[str] = []
    update = keras.optimizers.Adam.update_step

    @functools.wraps(update)
    def update_step(self, gradient, variable, learning_rate):
        paths.append(variable.path)
        return update(self, gradient, variable, learning_rate)

    monkeypatch.setattr(keras.optimizers.Adam, "update_step", update_step)
    return paths


def test_the_update_of_a_variable_is_traced_once(updates):
    """It takes most of a trace: the first trace, of what a step creates and logs, does without."""
    with running(create_engine, Regression(), seeded(models.mlp)) as rig:
        engine = rig.engine
        before = engine.weights()
        assert updates == []
        assert not engine.unassigned & {f"model/{key}" for key in before}
        engine.run(rig.feed, 3)
        assert len(updates) == len(before)
        assert all((before[key] != value).any() for key, value in engine.weights().items())


class OwnUpdate(keras.optimizers.SGD):
    """An optimizer whose formula is the user's."""

    def update_step(self, gradient, variable, learning_rate):
        """Overwrites the variable."""
        self.assign(variable, gradient)


def applied(optimizer):
    """Returns what is left of a weight of 1 after an update by 3, where updates are skipped."""
    variable = keras.Variable(np.ones(2, "float32"))
    optimizer.build([variable])
    with updates_skipped([optimizer]):
        optimizer.apply([np.full(2, 3.0, "float32")], [variable])
    return keras.ops.convert_to_numpy(variable)[0]


@pytest.mark.parametrize("name", ["Adam", "Nadam", "Lion"])
def test_updates_by_keras_are_skipped(name):
    optimizer = getattr(keras.optimizers, name)(0.5)
    assert applied(optimizer) == 1
    assert int(optimizer.iterations) == 1


def test_an_update_that_a_user_has_written_is_not_skipped():
    assert applied(OwnUpdate(0.5)) == 3


def test_optimizers_that_the_run_does_not_hold_are_not_skipped():
    variable, other = keras.Variable(np.ones(2, "float32")), keras.optimizers.SGD(0.5)
    other.build([variable])
    with updates_skipped([keras.optimizers.SGD()]):
        other.apply([np.ones(2, "float32")], [variable])
    assert keras.ops.convert_to_numpy(variable)[0] == 0.5


def test_variables_of_one_name_get_keys_in_one_pass():
    """A search for a free number from the beginning, for each of them, would grow with the square of their number."""
    keyed, count = CountedDict(), 300
    role = states._Role("model", keyed, {})
    for _ in range(count):
        role._add_variable(keras.Variable(np.zeros(1), name="w"), "model/w")
    assert list(keyed) == ["model/w", *(f"model/w_{number}" for number in range(1, count))]
    assert keyed.asked < 3 * count
