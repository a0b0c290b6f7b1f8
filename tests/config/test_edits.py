"""`+key=value` and `~key`: keys come and go where a config is open, and nowhere else."""

import pytest
from tests.config.config_samples import Task

from everstep.config import apply
from everstep.errors import UsageError


def test_a_plus_adds_to_what_is_open() -> None:
    config = apply(Task({"free": {"a": 1}}), overrides=["+free.b.c=2", "+table.new=[1]", "++free.a=3"])
    assert config.free is not None
    assert config.free.as_dict() == {"a": 3, "b": {"c": 2}}
    assert config.table == {"a": 1, "new": [1]}


def test_a_tilde_drops_from_what_is_open() -> None:
    config = apply(Task({"free": {"a": 1, "b": {"c": 2}}}), overrides=["~free.b.c", "~table.a"])
    assert config.free is not None
    assert config.free.as_dict() == {"a": 1, "b": {}}
    assert config.table == {}


def test_the_original_stays() -> None:
    task = Task()
    apply(task, overrides=["~table.a"])
    assert task.table == {"a": 1}


@pytest.mark.parametrize(
    ("override", "key", "remedy"),
    [
        ("+model.unist=3", "model.unist", "did you mean 'units'"),
        ("free.b=2", "free.b", "known: 'a'; to add it, write + before the whole key"),
        ("~model.units", "model.units", "set it to null"),
        ("~model.unist", "model.unist", "did you mean 'units'"),
        ("~nothing.at.all", "nothing.at.all", "known: "),
    ],
)
def test_declared_fields_stay_as_they_are(override: str, key: str, remedy: str) -> None:
    with pytest.raises(UsageError) as error:
        apply(Task({"free": {"a": 1}}), overrides=[override])
    assert error.value.key == key
    assert error.value.remedy.startswith(remedy)
    assert error.value.origin == f"override {override!r}"
