"""Override: merged, all or nothing, every problem named."""

import pytest

from everstep.config import Config
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

from .config_samples import BigModel, Experiment, Model, Task


def test_override_keeps_the_instances_held_and_their_subclasses():
    experiment = Experiment()
    experiment.task.model = big = BigModel()
    experiment.override({"task": {"model": {"depth": 7, "units": 1}}})
    assert experiment.task.model is big
    assert (big.depth, big.units) == (7, 1)


def test_override_reports_everything_at_once_and_changes_nothing():
    experiment = Experiment()
    with pytest.raises(UsageError) as error:
        experiment.override(
            {
                "steps": 5,
                "task": {
                    "model": {"unist": 3, "units": "abc"},
                    "extra": {"bais": True},
                    "layers": [{"units": 2}, {"x": 1}],
                    "lock": 1,
                },
                "_locked": True,
            }
        )
    problems = error.value.problems
    assert [problem.key for problem in problems] == [
        "task.model.unist",
        "task.model.units",
        "task.extra.bais",
        "task.layers[1].x",
        "task.lock",
        "_locked",
    ]
    assert problems[0].remedy == "did you mean 'units'?"
    assert experiment == Experiment()


def test_lists_of_configs_merge_by_element_when_as_long_and_are_replaced_otherwise():
    config = Task(layers=[Model(units=1, rate=0.1), BigModel(units=2)])
    config.override({"layers": [{"units": 10}, {"depth": 9}]})
    assert config.layers == [Model(units=10, rate=0.1), BigModel(units=2, depth=9)]
    config.override({"layers": [{"units": 5}]})
    assert config.layers == [Model(units=5)]


def test_a_list_that_is_replaced_instead_of_merged_is_warned_of_once(caplog):
    held = [Model(units=1) for _ in range(3)]
    for _ in range(2):
        Task(layers=held).override({"layers": [{"units": 5}, {"units": 6}]})
    Task(layers=held).override({"layers": []})
    Task(layers=held).override({"layers": [{"units": 5}] * 3})
    with pytest.raises(UsageError):
        Task(layers=held).override({"layers": [{"units": 5}] * 4, "unknown": 1})
    assert [record.message.partition(",")[0] for record in caplog.records] == ["layers: 2 given for 3"]


def test_an_indexed_key_changes_or_appends_one_element():
    config = Task()
    config.override({"layers[0]": {"rate": 0.1}, "layers[1]": {"units": 4}})
    assert config.layers == [Model(units=1, rate=0.1), Model(units=4)]
    config.override({"model": {"shape[2]": 3, "shape[0]": 9}})
    assert config.model.shape == (9, 2, 3)
    with raises_problem(key="layers[5]", received={}, reason="no such element"):
        config.override({"layers[5]": {}})


def test_dict_fields_are_merged_and_none_replaces():
    config = Task(extra=Model())
    config.override({"table": {"b": {"c": 2}}, "extra": None})
    config.override({"table": {"b": {"d": 3}}})
    assert config.table == {"a": 1, "b": {"c": 2, "d": 3}}
    assert config.extra is None


def test_unknown_keys_are_added_to_an_open_config_only():
    free = Config({"a": 1})
    free.override({"b": {"c": 2}}, is_strict=False)
    assert free.as_dict() == {"a": 1, "b": {"c": 2}}
    with raises_problem(key="b.d", received=2, reason="unknown key"):
        free.override({"b": {"d": 2}})
    with raises_problem(key="b", received=1, reason="unknown key"):
        Model().override({"b": 1}, is_strict=False)


def test_reserved_names_are_refused():
    for name in ("_locked", "_restrictions", "override", "validate", "BUILDER"):
        with raises_problem(key=name, reason="reserved"):
            Config({name: 1})
        with raises_problem(key=name, reason="reserved"):
            Config().override({name: 1}, is_strict=False)


def test_override_takes_a_mapping():
    with raises_problem(received=[1], reason="expected a dict"):
        Model().override([1])  # type: ignore[arg-type]


def test_a_locked_part_stops_the_whole_override():
    experiment = Experiment()
    experiment.task.model.lock()
    with raises_problem(key="task.model", reason="the config is locked"):
        experiment.override({"steps": 4, "task": {"model": {"units": 1}}})
    assert experiment.steps == 0


def test_another_config_may_be_the_override():
    config = Task()
    config.model.override(Model(units=7))
    assert config.model == Model(units=7)
