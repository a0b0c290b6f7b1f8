"""Config: construction, copies, locking, validation."""

import copy
import dataclasses
import pickle

import pytest

from everstep.config import Config
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

from .config_samples import BigModel, Experiment, Model, Task, Walker, Zoo


def test_keyword_arguments_and_default_params_combine():
    assert Model({"rate": 0.25}, units=9).as_dict() == {**Model().as_dict(), "rate": 0.25, "units": 9}


def test_mutable_defaults_are_copied_for_every_instance():
    first, second = Task(), Task()
    first.model.units = 99
    first.layers[0].units = 99
    first.table["b"] = 2
    assert second == Task()
    assert second.model.units == 3


def test_a_locked_default_gives_unlocked_instances():
    default = Model()
    default.lock()

    @dataclasses.dataclass
    class Other(Config):
        model: Model = default

    other = Other()
    other.model.units = 4
    assert (other.model.units, default.units) == (4, 3)


def test_an_unknown_attribute_names_the_nearest():
    with raises_problem(key="unist", received=3, reason="unknown key", remedy="did you mean 'units'"):
        Model().unist = 3


def test_an_open_config_reads_with_dots_and_compares_by_value():
    free = Config({"a": {"b": 1}, "items": [{"x": 1}]})
    assert (free.a.b, free.items[0].x) == (1, 1)
    assert free == Config({"a": {"b": 1}, "items": [{"x": 1}]})
    assert free != Config({"a": {"b": 2}})
    assert repr(Config({"a": 1})) == "Config(a=1)"
    del free.a
    assert free.as_dict() == {"items": [{"x": 1}]}


def test_as_dict_shares_nothing():
    config = Task()
    tree = config.as_dict()
    tree["table"]["a"] = 9
    tree["layers"].clear()
    assert config == Task()


def test_replace_returns_an_unlocked_copy():
    config = Experiment()
    config.lock()
    new = config.replace(task={"model": {"units": 8}})
    assert (new.task.model.units, config.task.model.units) == (8, 3)
    new.task.layers[0].units = 4
    assert config == Experiment()


def test_lock_is_deep():
    config = Zoo()
    experiment = Experiment(task=Task(named={"x": Model()}))
    for each in (config, experiment):
        each.lock()
    for key, act in (
        ("steps", lambda: setattr(experiment, "steps", 1)),
        ("units", lambda: setattr(experiment.task.model, "units", 1)),
        ("units", lambda: setattr(experiment.task.layers[0], "units", 1)),
        ("units", lambda: setattr(experiment.task.named["x"], "units", 1)),
        ("steps", lambda: delattr(experiment, "steps")),
        ("", lambda: experiment.override({"steps": 1})),
        ("", lambda: experiment.task.model.override({"units": 1})),
    ):
        with raises_problem(key=key, reason="locked"):
            act()


def test_a_declared_field_cannot_be_deleted():
    with raises_problem(key="units", reason="cannot be deleted"):
        del Model().units


@pytest.mark.parametrize("rule", ["units > 2", "units <= 3", "rate != units", "activation == None"])
def test_restrictions_that_hold(rule: str):
    Model(restrictions=[rule]).validate()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("units > 3", "violated: 3 against 3.0"),
        ("units == None", "violated"),
        ("units = 3", "not of the form"),
        ("1 < units < 3", "not of the form"),
        ("unitz < 3", "did you mean 'units'"),
        ("activation < 3", "not supported"),
    ],
)
def test_restrictions_that_do_not_hold(rule: str, message: str):
    with raises_problem(reason=message):
        Model(restrictions=[rule]).validate()


def test_restrictions_reach_into_sub_configs():
    with raises_problem(reason="violated"):
        Experiment(restrictions=["task.model.units < steps"]).validate()


def test_validate_walks_everything_held():
    zoo = Zoo(walkers=[Walker(), Walker(legs=-1)], best=Walker(legs=-2))
    with pytest.raises(UsageError) as error:
        zoo.validate()
    assert str(error.value) == "walkers[1]: legs cannot be negative\nbest: legs cannot be negative"


def test_configs_survive_copy_and_pickle():
    config = Experiment({"task": {"model": {"units": 8}}})
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config
    with raises_problem(key="units", received="x"):
        raise pickle.loads(pickle.dumps(pytest.raises(UsageError, Model, {"units": "x"}).value))


def test_equality_is_by_class_and_value():
    assert Model() == Model()
    assert Model() != BigModel()
    assert Model() != Model(units=4)


def test_get_and_in_work_as_for_a_dict():
    config = Model(units=3)
    assert (config.get("units"), config.get("unist"), config.get("unist", 5)) == (3, None, 5)
    assert "units" in config
    assert "override" not in config
    opened = Config({"a": {"b": None}})
    assert "b" in opened.a
    assert opened.get("a").get("b", 1) is None
