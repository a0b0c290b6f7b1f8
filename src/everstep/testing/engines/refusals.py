"""What an engine must refuse, with errors that name the remedy."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep
from everstep import Task
from everstep.errors import UsageError
from everstep.testing import models
from everstep.testing.tasks import Make, Regression, Scripted, running, seeded


def check_refuses_a_variable_made_in_a_step(make: Make) -> None:
    """A variable created while a step is traced would belong to no object: the error names it."""

    def variable(task: Any, inputs: Any, *_: Any) -> Any:
        return {"loss": ops.mean(inputs[0]) * keras.Variable(1.0, name="fleeting")}

    def layer(task: Any, inputs: Any, *_: Any) -> Any:
        return {"loss": ops.mean(layers.Dense(1, name="fleeting")(inputs[0]))}

    def optimizer(task: Any, inputs: Any, model: Any, *_: Any) -> Any:
        loss, grads = everstep.value_and_grad(lambda: ops.mean(model(inputs[0])), model.trainable_variables)
        keras.optimizers.Adam(name="fleeting").apply(grads, model.trainable_variables)
        return {"loss": loss}

    for step in (variable, layer, optimizer):
        _refused(make, step, "fleeting")


def check_refuses_a_variable_outside_the_task(make: Make) -> None:
    """A variable from outside the task would not be saved, and compiled steps would not see it change."""
    stray = keras.Variable(1.0, name="stray")

    def read(task: Any, inputs: Any, *_: Any) -> Any:
        return {"loss": ops.mean(inputs[0]) * stray}

    def write(task: Any, inputs: Any, *_: Any) -> Any:
        stray.assign(2.0)
        return {"loss": ops.mean(inputs[0])}

    for step in (read, write):
        _refused(make, step, "stray.*attributes of the task")
    assert float(ops.convert_to_numpy(stray)) == 1.0


def check_refuses_unseeded_draws(make: Make) -> None:
    """Unseeded random numbers could not be repeated: the error names the remedy."""

    def step(task: Any, inputs: Any, *_: Any) -> Any:
        return {"loss": ops.mean(keras.random.normal((3,)))}

    _refused(make, step, "seed=self.seed")
    keras.random.normal((3,))  # the generator behind it exists now
    _refused(make, step, "seed=self.seed")


def check_refuses_a_step_without_loss(make: Make) -> None:
    """A train step returns a mapping of scalars with the loss among them."""
    returns: list[tuple[Callable[[Any], Any], str]] = [
        (lambda x: {"other": ops.mean(x)}, "returned no 'loss'.*other"),
        (lambda x: {}, "returned no 'loss'"),
        (lambda x: None, "returned no 'loss'"),
        (lambda x: {"loss": ops.mean(x, axis=0)}, r"'loss' of shape \(4,\)"),
        (lambda x: {"loss": ops.mean(x), "all": x}, r"'all' of shape \(4, 4\)"),
        (lambda x: ops.mean(x), "return {self.loss: loss}"),
    ]
    for value, message in returns:
        _refused(make, lambda task, inputs, *_, value=value: value(inputs[0]), message)


def check_refuses_a_task_without_loss(make: Make) -> None:
    """No loss is an error, not zero."""

    class Lossless(Regression):
        def build_losses(self, *args: Any, **kwargs: Any) -> Any:
            return Task.build_losses(self, *args, **kwargs)

    with pytest.raises(UsageError, match="has no loss"), running(make, Lossless(), seeded(models.linear)):
        pass


def check_refuses_python_branches_on_tensors(make: Make) -> None:
    """A Python `if` on a tensor's value is an error on every backend, before the first step."""

    def step(task: Any, inputs: Any, *_: Any) -> Any:
        return {"loss": ops.mean(inputs[0]) if ops.mean(inputs[0]) > 0 else 0.0}

    _refused(make, step, "everstep.cond")


def check_refuses_text(make: Make) -> None:
    """Text cannot be placed on a device."""
    data = (np.ones((8, 4), "float32"), np.array(["a"] * 8))
    with (
        pytest.raises(UsageError, match="y: holds text"),
        running(make, Regression(), seeded(models.linear), data=data),
    ):
        pass


def check_refused_engine_leaves_no_trace(make: Make) -> None:
    """After a refusal the same objects serve a task that is right, and variables are made as before."""
    model = seeded(models.linear)
    weights = model.get_weights()[0]
    with pytest.raises(UsageError), running(make, Scripted(lambda *_: None), model):
        pass
    np.testing.assert_array_equal(keras.Variable(weights), model.get_weights()[0])
    with running(make, Regression(), model) as rig:
        rig.run(1)


def _refused(make: Make, step: Callable[..., Any], message: str) -> None:
    with pytest.raises(UsageError, match=message), running(make, Scripted(step), seeded(models.linear)):
        pass


def check_refuses_outputs_that_are_no_numbers(make: Make) -> None:
    """What no device can hold is named with its place in the outputs, and so is a nested log of a train step."""

    class Texts(Regression):
        def validation_step(self, inputs: Any, model: Any, metrics: Any) -> Any:
            return {"pair": (inputs[1], {"name": "x"})}

    class Pairs(Regression):
        def train_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Any) -> Any:
            return {"loss": ops.mean(model(inputs[0])), "pair": (inputs[0], inputs[1])}

    batch = models.samples(models.linear(), 4)
    refused = (Texts(), "Texts.validation_step", "['pair'][1]['name']"), (Pairs(), "Pairs.train_step", "'pair'")
    for task, key, named in refused:
        with pytest.raises(UsageError) as error:
            make(task, seeded(models.linear), keras.optimizers.Adam()).build(batch, batch)
        assert error.value.key == key
        assert named in error.value.reason


CHECKS = [
    check_refuses_outputs_that_are_no_numbers,
    check_refuses_a_variable_made_in_a_step,
    check_refuses_a_variable_outside_the_task,
    check_refuses_unseeded_draws,
    check_refuses_a_step_without_loss,
    check_refuses_a_task_without_loss,
    check_refuses_python_branches_on_tensors,
    check_refuses_text,
    check_refused_engine_leaves_no_trace,
]
