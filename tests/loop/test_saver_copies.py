"""How often the state is copied for a save."""

import keras
import numpy as np
import pytest

import everstep
from everstep.engine import Engine
from everstep.engine import state as states

pytestmark = pytest.mark.slow


@pytest.fixture
def copies(monkeypatch):
    """The numbers of variables whose values were copied, one entry for each time that the state was."""
    found = []
    own_state = Engine.own_state
    monkeypatch.setattr(
        Engine, "own_state", lambda self, *args, **kwargs: found.append(1) or own_state(self, *args, **kwargs)
    )
    return found


def test_the_state_of_an_epoch_is_copied_once(tmp_path, copies, no_export):
    """Callbacks act at the end of each epoch, so the state is checked before them, and saved after them."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.ones((32, 4), "float32")
    seen = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(len(copies)))
    everstep.fit(
        model, x, x[:, :1], batch_size=8, epochs=3, verbose=0, model_dir=tmp_path / "run", callbacks=[callback]
    )
    assert [later - earlier for earlier, later in zip(seen, seen[1:], strict=False)] == [1, 1]


def test_what_was_read_as_a_copy_is_not_copied_again():
    value, number = np.ones(3, "float32"), np.ones(3, "int32")
    assert states.own(value, copy=False) is value
    assert states.own(value) is not value
    assert states.own(number, copy=False).dtype == np.int64
