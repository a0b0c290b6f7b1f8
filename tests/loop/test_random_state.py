"""The global random generators: through JSON, through a resume, and beside a thread that borrows them."""

import json
import random
import time

import keras
import numpy as np
import pytest

import everstep as es
from everstep.loop import random_state
from everstep.loop.action_hook import Actions
from everstep.loop.controller import Controller
from everstep.testing.problems import raises_problem
from loop.samples import MemoryCheckpointer, SavedCounter

pytestmark = pytest.mark.slow


def draw():
    """Draws from both generators, and an odd number of normal ones: each keeps the second of a pair for later."""
    ours = random.random(), random.gauss(0, 1), tuple(random.sample(range(99), 3))
    return *ours, np.random.normal(), tuple(np.random.permutation(9).tolist())


@pytest.fixture(autouse=True)
def as_before():
    before = random_state.get()
    yield
    random_state.set(before)


@pytest.mark.parametrize("draws", range(3))
def test_resumes_exactly(draws):
    random.seed(1), np.random.seed(2)
    for _ in range(draws):
        draw()
    state = json.loads(json.dumps(random_state.get()))
    wanted = [draw() for _ in range(3)]
    random.seed(), np.random.seed()
    random_state.set(state)
    assert [draw() for _ in range(3)] == wanted


def test_state_consists_of_integers_except_pending_normal_numbers():
    random.seed(1), np.random.seed(2)
    state = random_state.get()
    version, words, pending = state["python"]
    assert (pending, state["numpy"]["has_gauss"]) == (None, 0)
    assert all(type(word) is int for word in [version, *words, *state["numpy"]["state"]["key"]])


def test_another_generator_behind_numpy():
    state, behind = random_state.get(), np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(0))
    try:
        other = random_state.get()
        wanted = np.random.normal()
        random_state.set(json.loads(json.dumps(other)))
        assert np.random.normal() == wanted
        with raises_problem(key="the bit generator of np.random", reason="is PCG64, .* saved with MT19937"):
            random_state.set(state)
    finally:
        np.random.set_bit_generator(behind)


def test_actions_draw_on_after_a_resume():
    def drawn(steps, checkpointer):
        seen = []
        hooks = [Actions([lambda logs: seen.append(draw())])]
        every = {"steps_per_loop": 2, "checkpoint_interval": 2}
        controller = Controller(trainer=SavedCounter(), checkpointer=checkpointer, hooks=hooks, **every)
        random.seed(5), np.random.seed(5)  # as every attempt does before anything is made
        controller.restore_checkpoint()
        draw()  # what is made in between does not matter
        controller.train(steps)
        return seen

    random.seed(5), np.random.seed(5)
    draw()
    wanted = [draw() for _ in range(4)]
    checkpointer = MemoryCheckpointer()
    assert drawn(4, checkpointer) + drawn(8, checkpointer) == wanted


class Draws(keras.callbacks.Callback):
    """Draws for as long as the data's thread would need to come in between."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_epoch_end(self, epoch, logs=None):
        for _ in range(5):
            self.drawn.append(draw())
            time.sleep(0.002)


@pytest.mark.backend
def test_data_and_callbacks_draw_side_by_side():
    """Data that draws from the global generators in its thread neither changes nor learns what a callback draws."""
    seen = []

    def batches():
        for _ in range(3):
            x = np.random.normal(size=(4, 2)).astype("float32")
            time.sleep(0.002)
            seen.append(np.random.random())
            yield x, x.sum(axis=1, keepdims=True) + np.random.normal()

    def fit(data, watching):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        keras.utils.set_random_seed(0)  # fit leaves the global generators as they are
        es.fit(model, data, epochs=4, steps_per_epoch=3, callbacks=watching, verbose=False, seed=0)

    quiet, loud = Draws(), Draws()
    fit((np.zeros((12, 2), "float32"), np.zeros((12, 1), "float32")), [quiet])
    fit(batches, [])
    alone, seen = seen[:12], []
    fit(batches, [loud])
    assert loud.drawn == quiet.drawn
    assert seen[:12] == alone
