"""Optimizers exclude the same variables in every process, whatever was built before."""

import keras
import numpy as np
import pytest

from everstep.engine.state import name_variables
from everstep.optim import OptimizationConfig
from everstep.task.optim.building import build
from everstep.task.optim.ema import ExponentialMovingAverage
from everstep.task.optim.optimizers import matches
from loop.samples import TinyTask

pytestmark = pytest.mark.backend

LISTS = {"weight_decay_rate": 0.5, "exclude_from_weight_decay": ["^dense_1/", "norm"]}


def model() -> keras.Sequential:
    layers = [keras.layers.Dense(3), keras.layers.LayerNormalization(), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((4,)), *layers])


def decaying(type_, named, wrap=lambda optimizer: optimizer):
    """Returns the indices of the variables that decay: they change although their gradients are zero."""
    built, task = model(), TinyTask()
    for variable in built.trainable_variables:
        variable.assign(np.ones(variable.shape))
    optimizer = wrap(build(OptimizationConfig({"optimizer": {"type": type_, type_: LISTS}})))
    if named == "before":
        name_variables(task, built, optimizer)
    optimizer.build(built.trainable_variables)
    if named == "after":
        name_variables(task, built, optimizer)
    optimizer.apply([keras.ops.zeros(v.shape) for v in built.trainable_variables], built.trainable_variables)
    values = [keras.ops.convert_to_numpy(v) for v in built.trainable_variables]
    return [place for place, value in enumerate(values) if np.any(value != 1)]


@pytest.mark.parametrize("type_", ["adamw", "lamb", "lars"])
def test_the_second_model_of_a_process_excludes_the_same_variables(type_):
    for named in ("before", "after"):  # the optimizer was built
        assert decaying(type_, named) == decaying(type_, named) == [0, 1]


def test_muon_leaves_the_same_matrices_to_adamw_in_every_model_of_a_process():
    for _ in range(2):
        built = model()
        optimizer = build(
            OptimizationConfig({"optimizer": {"type": "muon", "muon": {"exclude_layers": ["^dense_1/"]}}})
        )
        name_variables(TinyTask(), built, optimizer)
        optimizer.build(built.trainable_variables)
        of_muon = [v.path for v in built.trainable_variables if not optimizer._should_use_adamw(v)]
        assert of_muon == [built.layers[0].kernel.path]


def test_names_reach_a_wrapped_optimizer():
    assert decaying("adamw", "before", ExponentialMovingAverage) == [0, 1]
    assert decaying("adamw", "after", lambda one: ExponentialMovingAverage(one, average_decay=0.5)) == [0, 1]


def test_an_optimizer_of_the_task_gets_names_of_the_task():
    task, optimizer = TinyTask(), build(OptimizationConfig({"optimizer": {"type": "adamw", "adamw": LISTS}}))
    task.critic, task.own = model(), {"optimizer": optimizer}
    name_variables(task, model(), None)
    names = optimizer._named(task.critic.trainable_variables)
    assert names[:3] == ["task.critic/dense/kernel", "task.critic/dense/bias", "task.critic/layer_normalization/gamma"]


def test_a_variable_without_a_name_uses_its_path():
    optimizer = build(OptimizationConfig({"optimizer": {"type": "adamw", "adamw": LISTS}}))
    with keras.name_scope("layer"):
        variable = keras.Variable(np.ones(2), name="weight")
    assert optimizer._named([variable]) == ["layer/weight"]


def test_expressions_for_names_of_tensorflow_1():
    assert matches([".*(kernel|weight):0$"], "encoder/dense/kernel")
    assert not matches([".*(kernel|weight):0$"], "encoder/dense/bias")
    assert matches(["bias$"], "encoder/dense/bias")
