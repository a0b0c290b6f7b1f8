"""Half precision: scaled losses, and the error where a loss should have been scaled."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import everstep
from everstep.errors import UsageError
from everstep.task.optim import scaling_loss
from everstep.testing import models
from everstep.testing.tasks import Make, Regression, Scripted, running, seeded


def half(dtype: str = "mixed_float16") -> keras.Model:
    """A model that computes in half precision and keeps its variables in float32."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh", dtype=dtype), layers.Dense(1, dtype=dtype)])


def check_float16_learns(make: Make) -> None:
    """With a dynamic scale the loss falls, the scale grows, and the same bits come from any split."""
    digests = set()
    for split in [(60,), (1,) * 3 + (57,)]:
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(1e-2), initial_scale=1024.0, dynamic_growth_steps=20
        )
        with running(make, Regression(), seeded(half), optimizer) as rig:
            rig.run(5)
            first = rig.engine.read("train")["loss"]
            rig.engine.reset("train")
            rig.run(*split)
            assert rig.engine.read("train")["loss"] < first
            np.testing.assert_allclose(rig.engine.read("train")["learning_rate"], 1e-2, rtol=1e-6)
            assert rig.value("dynamic_scale") == 1024 * 8
            assert rig.value("optimizer/inner/iteration") == 65
            assert rig.value("model/dense/kernel").dtype == np.float32
            digests.add(rig.digest())
    assert len(digests) == 1


def check_float16_overflow_skips_the_step(make: Make) -> None:
    """Gradients too large for the type move nothing; the scale is halved and the next step continues."""
    model = seeded(lambda: half())
    x, y = models.samples(model, 8)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2), initial_scale=2.0**24)
    with running(make, Regression(), model, optimizer, data=(x, y)) as rig:
        start = rig.value("model/dense/kernel")
        rig.run(1)
        np.testing.assert_array_equal(rig.value("model/dense/kernel"), start)
        assert rig.value("dynamic_scale") == 2.0**23
        rig.run(20)
        assert not np.array_equal(rig.value("model/dense/kernel"), start)
        assert np.isfinite(rig.value("model/dense/kernel")).all()


def check_fixed_scale_stays(make: Make) -> None:
    """An overflow skips the step; the scale does not change."""
    model = seeded(lambda: half())
    x, y = models.samples(model, 8)
    optimizer = scaling_loss(keras.optimizers.SGD(1e-2), 2.0**30)
    with running(make, Regression(), model, optimizer, data=(x, y)) as rig:
        start = rig.value("model/dense/kernel")
        rig.run(3)
        np.testing.assert_array_equal(rig.value("model/dense/kernel"), start)
        assert rig.value("dynamic_scale") == 2.0**30
    optimizer = scaling_loss(keras.optimizers.SGD(1e-2), 128.0)
    with running(make, Regression(), seeded(half), optimizer, data=(x, y)) as rig:
        rig.run(5)
        first = rig.engine.read("train")["loss"]
        rig.engine.reset("train")
        rig.run(60)
        assert rig.engine.read("train")["loss"] < first
        assert rig.value("dynamic_scale") == 128.0


def check_scaled_loss_is_logged_unscaled(make: Make) -> None:
    """Scaling changes neither the loss that is logged nor, but for rounding, what is learned."""
    kernels, losses = [], []
    for scale in (None, 256.0):
        inner = keras.optimizers.SGD(0.1)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=scale) if scale else inner
        with running(make, Regression(), seeded(models.plain_mlp), optimizer) as rig:
            rig.run(5)
            losses.append(rig.engine.read("train")["loss"])
            kernels.append(rig.value("model/dense/kernel"))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(kernels[0], kernels[1], rtol=1e-4, atol=1e-6)


def check_unscaled_gradients_are_refused(make: Make) -> None:
    """Gradients of an unscaled loss would be divided by the scale: the error names the argument to pass."""

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        loss, grads = everstep.value_and_grad(
            lambda: task.build_losses(inputs[1], model(inputs[0])), model.trainable_variables
        )
        optimizer.apply(grads, model.trainable_variables)
        return {"loss": loss}

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    with (
        pytest.raises(UsageError, match="optimizer=optimizer"),
        running(make, Scripted(step), seeded(half), optimizer),
    ):
        pass


def check_steps_may_scale_by_themselves(make: Make) -> None:
    """A step that takes the gradients of `optimizer.scale_loss(loss)`, as under a tape of its own, learns."""

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        def scaled() -> tuple[Any, Any]:
            loss = task.build_losses(inputs[1], model(inputs[0]))
            return optimizer.scale_loss(loss), loss

        (_, loss), grads = everstep.value_and_grad(scaled, model.trainable_variables)
        optimizer.apply(grads, model.trainable_variables)
        return {"loss": loss}

    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2), initial_scale=64.0)
    with running(make, Scripted(step), seeded(half), optimizer) as rig:
        rig.run(5)
        first = rig.engine.read("train")["loss"]
        rig.engine.reset("train")
        rig.run(60)
        assert rig.engine.read("train")["loss"] < first


def check_scales_in_task_attributes(make: Make) -> None:
    """A loss-scaling optimizer that the task holds, built late, works as the main one does."""

    def step(task: Any, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
        logs = Regression.train_step(task, inputs, model, optimizer, metrics)
        for own in (task.own, *task.more):
            loss, grads = everstep.value_and_grad(
                lambda: task.build_losses(inputs[1], task.second(inputs[0])),
                task.second.trainable_variables,
                optimizer=own,
            )
            own.apply(grads, task.second.trainable_variables)
        return {**logs, "second": loss}

    scaling = [keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0) for _ in range(2)]
    task = Scripted(step, second=seeded(half), own=scaling[0], more=[scaling[1]])
    with running(make, task, seeded(models.plain_mlp)) as rig:
        rig.run(2)
        first = rig.engine.read("train")["second"]
        rig.engine.reset("train")
        rig.run(40)
        assert rig.engine.read("train")["second"] < first
        assert rig.value("task.own/inner/iteration") == 42


def check_bfloat16_learns(make: Make) -> None:
    """bfloat16 needs no scaling; variables of that type travel in the state as they are."""
    task = Regression(brief=keras.Variable(1.5, dtype="bfloat16"))
    with running(make, task, seeded(lambda: half("mixed_bfloat16"))) as rig:
        rig.run(5)
        first = rig.engine.read("train")["loss"]
        rig.engine.reset("train")
        rig.run(60)
        assert rig.engine.read("train")["loss"] < first
        state = rig.engine.state()
        assert state["task.brief"].dtype.name == "bfloat16"
        before = rig.digest()
        rig.engine.load(state)
        assert rig.digest() == before


CHECKS = [
    check_float16_learns,
    check_float16_overflow_skips_the_step,
    check_fixed_scale_stays,
    check_scaled_loss_is_logged_unscaled,
    check_unscaled_gradients_are_refused,
    check_steps_may_scale_by_themselves,
    check_scales_in_task_attributes,
    check_bfloat16_learns,
]
