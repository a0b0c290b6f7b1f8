"""How each backend runs its steps, as recorded by `Engine.describe`."""

import contextlib

import keras
import numpy as np
import pytest

from everstep.data.arrays import ArrayStream, aligned
from everstep.engine.backend import create_engine
from everstep.engine.window import WindowSums
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
        calls = list(rig.engine.calls(rig.feed, 7))
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
    monkeypatch.setattr(engine.backend.workers, "sees_whole_loss", False)
    x, y = models.samples(engine.model, 8)
    engine.build((x[:4], y[:4]))
    with contextlib.closing(engine.feed(ArrayStream((x, y), 4, shuffle=False))) as feed:
        engine.run(feed, 2)
    assert engine.read_bad_step_later()() is None


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the other backends compile nothing for a length")
def test_one_program_serves_calls_of_every_length():
    with running(create_engine, Regression(), seeded(models.mlp), long_calls=True) as rig:
        rig.run(1, 7, 16, 3, 30)
        assert rig.engine.compilations == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("kind", ["aligned", "not aligned", "read-only", "not contiguous"])
def test_a_batch_is_placed_as_it_is(kind, dtype):
    engine = create_engine(Regression(), seeded(models.mlp), keras.optimizers.SGD())
    array = aligned((4, 6), dtype)
    if kind == "not aligned":
        size = array.itemsize * array.size
        array = aligned((size + 8,), "uint8")[8:].view(dtype).reshape(4, 6)
    array[...] = np.arange(24).reshape(4, 6) % 2
    array = array[:, ::2] if kind == "not contiguous" else array
    array.flags.writeable = kind != "read-only"
    placed = keras.ops.convert_to_numpy(engine.backend.place_whole({"x": array})["x"])
    np.testing.assert_array_equal(placed, array)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX compiles the sums with the step")
@pytest.mark.parametrize(
    "losses", [[0.1, 0.7, 1e-3], [0.1, np.nan, 0.2], [np.inf, 0.1, 0.2]], ids=["finite", "nan", "inf"]
)
def test_sums_without_keras_have_the_same_bits(losses):
    own = create_engine(Regression(), seeded(models.mlp)).backend.sums
    assert own is not WindowSums
    found = []
    for sums in (WindowSums({"loss": ()}, []), own({"loss": ()}, [])):
        sums.watch("loss")
        for size, loss in enumerate(losses, 31):
            sums.add({"loss": keras.ops.convert_to_tensor(np.float32(loss))}, size)
        found.append([keras.ops.convert_to_numpy(variable.value).tobytes() for variable in sums.variables])
    assert found[0] == found[1]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of compiled functions of TensorFlow")
def test_a_call_passes_a_block_as_it_was_traced(monkeypatch):
    """Otherwise TensorFlow first prints all batches into an error, which takes as long as several steps."""
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

    def refused(*args):
        raise AssertionError("the arguments were not bound")

    monkeypatch.setattr(ConcreteFunction, "_call_with_flat_signature", refused)
    with running(create_engine, Regression(), seeded(models.mlp), long_calls=True) as rig:
        rig.run(7)
