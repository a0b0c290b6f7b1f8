"""The state: its keys, its types, and how it moves between engine, host and Keras objects."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from everstep.checkpoint import digest
from everstep.engine import EVALUATED
from everstep.errors import UsageError
from everstep.testing import models
from everstep.testing.tasks import Make, Regression, Scripted, running, seeded
from everstep.types import State

MLP_KEYS = {
    "model/dense/bias",
    "model/dense/kernel",
    "model/dense_1/bias",
    "model/dense_1/kernel",
    "model/seed_generator/seed_generator_state",
    "optimizer/iteration",
    "optimizer/learning_rate",
    "optimizer/model/dense/bias/momentum",
    "optimizer/model/dense/bias/velocity",
    "optimizer/model/dense/kernel/momentum",
    "optimizer/model/dense/kernel/velocity",
    "optimizer/model/dense_1/bias/momentum",
    "optimizer/model/dense_1/bias/velocity",
    "optimizer/model/dense_1/kernel/momentum",
    "optimizer/model/dense_1/kernel/velocity",
    "metrics.train/mae/count",
    "metrics.train/mae/total",
    "window.train/samples",
    "window.train/totals/loss",
}

HELD_KEYS = [
    "task.seed/seed",
    "task.teacher/dense/kernel",
    "task.slow/iteration",
    "task.quality/quality/total",
    "task.number",
    "task.shelf/0",
    "task.shelf/1/a/seed",
    "task.shelf/1/b/dense/kernel",
]

OPTIMIZERS = {
    name: cls
    for name, cls in sorted(vars(keras.optimizers).items())
    if isinstance(cls, type)
    and issubclass(cls, keras.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
}


def many_parts() -> keras.Model:
    """Nested models, layers of one class, layers with names that look automatic, and several random ones."""
    inner = keras.Sequential([layers.Dense(4), layers.Dropout(0.1), layers.BatchNormalization()])
    x = keras.Input((4,))
    y = layers.Dense(4, name="dense_7")(inner(x))
    y = layers.GaussianNoise(0.1)(inner(y))
    return keras.Model(x, layers.Dense(1)(layers.Dropout(0.1)(y)))


def check_keys_do_not_depend_on_chance(make: Make) -> None:
    """A second build in one process has the same keys, and the first one's state fits it."""
    states: list[State] = []
    for _ in range(2):
        _use_up_names()
        with running(make, holding_much(), seeded(many_parts)) as rig:
            if states:
                rig.engine.load(states[0])
                assert rig.digest() == digest(states[0])
            states.append(rig.engine.state())
    assert list(states[0]) == list(states[1])


def check_keys_of_a_small_model(make: Make) -> None:
    """The keys of a small model, as every checkpoint has them."""
    with running(make, Regression(), seeded(models.mlp)) as rig:
        assert set(rig.engine.state()) == MLP_KEYS


def check_every_optimizer_has_keys(make: Make, name: str) -> None:
    """Each optimizer of Keras is kept apart from the model, slot by slot, and resumes from its state."""
    with running(make, Regression(), seeded(models.linear), OPTIMIZERS[name](0.01)) as rig:
        rig.run(2)
        state, position = rig.engine.state(), rig.feed.state()
        rig.run(2)
        ended = rig.digest()
        rig.engine.load(state)
        rig.feed.restore(position)
        rig.run(2)
        assert rig.digest() == ended


def check_refuses_two_of_one_name(make: Make) -> None:
    """Two metrics of one name would share a key and a line in the logs."""

    class Twice(Regression):
        def build_metrics(self, training: bool = True) -> list[keras.Metric]:
            return [keras.metrics.Mean(name="same"), keras.metrics.Mean(name="same")]

    with pytest.raises(UsageError, match="'same'"), running(make, Twice(), seeded(models.linear)):
        pass


def check_integers_are_canonical(make: Make) -> None:
    """Integers are int64 in the state on every backend, and floats keep their type."""
    task = Regression(
        count=keras.Variable(np.uint8(200), dtype="uint8", trainable=False), half=keras.Variable(0.5, dtype="float16")
    )
    with running(make, task, seeded(models.mlp)) as rig:
        rig.run(1)
        state = rig.engine.state()
        assert state["optimizer/iteration"].dtype == state["task.count"].dtype == np.int64
        assert state["model/seed_generator/seed_generator_state"].dtype == np.int64
        assert state["task.half"].dtype == np.float16
        assert {value.dtype.kind for value in state.values()} == {"f", "i"}
        rig.engine.load(state)
        assert rig.digest() == digest(state)


def check_task_attributes_belong_to_the_state(make: Make) -> None:
    """All Keras objects that a task holds, in lists and dicts too, are in the state and resume from it."""
    with running(make, holding_much(), seeded(models.linear)) as rig:
        keys = set(rig.engine.state())
        assert not {key for key in HELD_KEYS if key not in keys}
        rig.run(3)
        state, position = rig.engine.state(), rig.feed.state()
        assert state["task.number"] == 3 == state["task.slow/iteration"]
        assert state["task.shelf/0"] == 6
        assert state["task.seed/seed"][1] == 3
        rig.run(2)
        ended = rig.digest()
        rig.engine.load(state)
        rig.feed.restore(position)
        rig.run(2)
        assert rig.digest() == ended


def check_load_is_strict(make: Make) -> None:
    """One error names everything that does not fit, and nothing is changed."""
    with running(make, Regression(), seeded(models.mlp)) as rig:
        rig.run(1)
        before, state = rig.digest(), rig.engine.state()
        del state["model/dense/bias"]
        state["model/dense_9/bias"] = np.zeros(3, "float32")
        state["model/dense/kernel"] = np.zeros((4, 9), "float32")
        state["model/dense_1/kernel"] = np.zeros((8, 1), "float64")
        state["optimizer/iteration"] = np.array(1, "float32")
        state["model/dense_1/bias"] = np.full(1, 77, "float32")  # this one fits
        with pytest.raises(UsageError) as error:
            rig.engine.load(state)
        for part in (
            "5 differences",
            "missing: model/dense/bias",
            "unexpected: model/dense_9/bias",
            "shape of model/dense/kernel: here (4, 8), given (4, 9)",
            "dtype of model/dense_1/kernel: here float32, given float64",
            "dtype of optimizer/iteration",
        ):
            assert part in str(error.value)
        assert rig.digest() == before
        rig.engine.push()
        assert not np.any(keras.ops.convert_to_numpy(rig.engine.model.weights[-1]) == 77)


def check_loads_a_part(make: Make) -> None:
    """To evaluate, the model's part alone is loaded, with the same checks."""
    with running(make, Regression(), seeded(models.mlp)) as rig:
        rig.run(5)
        trained = rig.engine.state()
        batch = rig.stream.peek()
    engine = make(Regression(), seeded(models.mlp, 3), None)
    engine.build(None, batch)
    engine.load(trained, only=EVALUATED)
    np.testing.assert_array_equal(engine.state()["model/dense/kernel"], trained["model/dense/kernel"])
    with pytest.raises(UsageError, match="missing: model/dense/kernel"):
        engine.load({k: v for k, v in trained.items() if k != "model/dense/kernel"}, only=("model/",))


def check_state_is_a_copy(make: Make) -> None:
    """Neither later steps change a returned state, nor changes to it the engine."""
    with running(make, Regression(), seeded(models.mlp)) as rig:
        state = rig.engine.state()
        before = digest(state)
        rig.run(3)
        assert digest(state) == before
        after = rig.digest()
        taken = rig.engine.state()
        for value in taken.values():
            value[...] = 0
        assert rig.digest() == after
        rig.engine.load(state)
        for value in state.values():
            value[...] = 0
        assert rig.digest() == before


def check_pull_sees_changes(make: Make) -> None:
    """The next run starts from what user code changed between `push` and `pull`."""
    with running(make, Regression(), seeded(models.linear), keras.optimizers.SGD(0.1)) as rig:
        rig.run(3)
        rig.engine.push()
        optimizer, model = rig.engine.optimizer, rig.engine.model
        assert optimizer is not None
        assert int(ops.convert_to_numpy(optimizer.iterations)) == 3
        np.testing.assert_array_equal(model.get_weights()[0], rig.value("model/dense/kernel"))
        optimizer.learning_rate = 0.0
        model.set_weights([np.full((4, 1), 2.0)])
        rig.engine.pull()
        rig.run(3)
        assert rig.value("iteration") == 6
        assert rig.engine.read("train")["learning_rate"] == 0
        np.testing.assert_array_equal(rig.value("model/dense/kernel"), np.full((4, 1), 2.0))


def check_push_and_pull_change_nothing(make: Make) -> None:
    """`push` and `pull` in the middle of training change no bits."""
    digests = set()
    for pushes in (False, True):
        with running(make, Regression(), seeded(models.mlp)) as rig:
            for _ in range(4):
                rig.run(2)
                if pushes:
                    rig.engine.push()
                    rig.engine.pull()
                    rig.engine.pull()
            digests.add(rig.digest())
    assert len(digests) == 1


def check_pushed_arrays_are_never_written_to(make: Make) -> None:
    """Arrays that user code got from the model are never written to by later runs."""
    with running(make, Regression(), seeded(models.mlp)) as rig:
        rig.run(2)
        rig.engine.push()
        model = rig.engine.model
        views = [keras.ops.convert_to_numpy(v) for v in model.variables]
        copies = [np.array(view) for view in views]
        rig.engine.pull()
        rig.run(10)
        rig.engine.push()
        rig.run(1)
        for view, copy in zip(views, copies, strict=True):
            np.testing.assert_array_equal(view, copy)


def holding_much() -> Scripted:
    """A task that holds one of everything, and uses it in its step."""

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        logs = Regression.train_step(task, inputs, model, optimizer, metrics)
        noise = keras.random.normal((4, 4), seed=task.seed)
        noise += keras.random.normal((4, 4), seed=task.shelf[1]["a"])
        task.slow.apply([ops.ones((4, 1))], task.shelf[1]["b"].trainable_variables)
        task.quality.update_state(ops.mean(task.teacher(noise)))
        task.number.assign(task.number + 1)
        task.shelf[0].assign(task.shelf[0] + 2)
        return logs

    return Scripted(
        step,
        seed=keras.random.SeedGenerator(1),
        teacher=models.linear(),
        slow=keras.optimizers.SGD(0.1),
        quality=keras.metrics.Mean(name="quality"),
        number=keras.Variable(0, dtype="int32", trainable=False),
        shelf=[keras.Variable(0.0), {"a": keras.random.SeedGenerator(2), "b": models.linear()}],
    )


def _use_up_names() -> None:
    """Makes objects whose automatic numbers are then taken."""
    for make in (lambda: layers.Dense(3), keras.metrics.Mean, keras.optimizers.Adam, keras.Sequential):
        make()


def half_frozen() -> keras.Model:
    """A frozen layer, dropout, a normalization that learns, one that does not, and a layer that learns."""
    inputs = keras.Input((4,))
    x = layers.Dense(8, trainable=False, name="body")(inputs)
    x = layers.BatchNormalization(name="norm")(layers.Dropout(0.5)(x))
    x = layers.BatchNormalization(trainable=False, name="still")(x)
    return keras.Model(inputs, layers.Dense(1, name="head")(x))


def check_knows_what_is_frozen(make: Make) -> None:
    """Frozen is what is neither trainable nor assigned; its bits stay, a change shows, and a state may lack it."""
    with running(make, Regression(), seeded(half_frozen)) as rig:
        engine = rig.engine
        still = [f"still/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")]
        assert set(engine.frozen) == {f"model/{name}" for name in ("body/kernel", "body/bias", *still)}
        sums, base = engine.checksums(engine.frozen), engine.digest_of(engine.frozen)
        rig.run(3)
        assert engine.checksums(engine.frozen) == sums
        state = {key: value for key, value in engine.state().items() if key not in engine.frozen}
        assert dict(engine.own_state(without=engine.frozen)).keys() == state.keys()
        rig.run(2)
        known = {"name": "a preset", "digest": base, "variables": len(engine.frozen)}
        engine.load(state, base=known)
        np.testing.assert_array_equal(rig.value("model/head/kernel"), state["model/head/kernel"])
        engine.push()
        kernel = engine.variables["model/body/kernel"]
        kernel.assign(np.asarray(ops.convert_to_numpy(kernel))[::-1].copy())  # the same numbers, in another order
        engine.pull()
        changed = engine.checksums(engine.frozen)
        assert [key for key in sums if changed[key] != sums[key]] == ["model/body/kernel"]
        with pytest.raises(UsageError) as caught:
            engine.load(state, base=known)
        assert base in caught.value.problems[0].reason
        with pytest.raises(UsageError):  # not of a base
            engine.load(state)


CHECKS = [
    check_keys_do_not_depend_on_chance,
    check_keys_of_a_small_model,
    check_refuses_two_of_one_name,
    check_integers_are_canonical,
    check_task_attributes_belong_to_the_state,
    check_load_is_strict,
    check_loads_a_part,
    check_state_is_a_copy,
    check_pull_sees_changes,
    check_push_and_pull_change_nothing,
    check_pushed_arrays_are_never_written_to,
    check_knows_what_is_frozen,
]
