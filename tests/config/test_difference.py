"""What differs between two configs."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from everstep.config import Config, OneOfConfig
from everstep.config.difference import ABSENT, Change, differences, in_line


@dataclasses.dataclass
class Sgd(Config):
    momentum: float = 0.0


@dataclasses.dataclass
class Adam(Config):
    beta: float = 0.9
    table: dict[str, Any] = {}


@dataclasses.dataclass
class Optimizer(OneOfConfig):
    type: str | None = "sgd"
    sgd: Sgd = Sgd()
    adam: Adam = Adam()


@dataclasses.dataclass
class Top(Config):
    steps: int = 1
    rate: float = 1.0
    layers: list[Sgd] = [Sgd()]
    shape: tuple[int, ...] = (1, 2)
    maybe: Sgd | None = None
    optimizer: Optimizer = Optimizer()
    free: Config = Config({"a": 1})


def changes(values: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    new = Top()
    new.override(values, is_strict=False)
    return [(change.path, change.old, change.new) for change in differences(Top(), new)]


def test_equal_configs_do_not_differ():
    assert differences(Top(), Top()) == []


def test_values_are_reported_by_their_paths_in_the_order_of_the_keys():
    found = changes({"optimizer": {"sgd": {"momentum": 0.9}}, "rate": 2, "steps": 5})
    assert found == [("steps", 1, 5), ("rate", 1.0, 2.0), ("optimizer.sgd.momentum", 0.0, 0.9)]


def test_a_list_is_one_value():
    assert changes({"shape": [1, 3]}) == [("shape", (1, 2), (1, 3))]
    assert changes({"layers": [{"momentum": 0.5}]}) == [("layers", [{"momentum": 0.0}], [{"momentum": 0.5}])]


def test_another_branch_is_one_change_for_each_branch():
    assert changes({"optimizer": {"type": "adam", "adam": {"beta": 0.8}}}) == [
        ("optimizer.type", "sgd", "adam"),
        ("optimizer.sgd", {"momentum": 0.0}, ABSENT),
        ("optimizer.adam", ABSENT, {"beta": 0.8, "table": {}}),
    ]
    assert changes({"optimizer": {"type": None}}) == [
        ("optimizer.type", "sgd", None),
        ("optimizer.sgd", {"momentum": 0.0}, ABSENT),
    ]


def test_a_branch_that_is_not_in_use_does_not_count():
    assert changes({"optimizer": {"adam": {"beta": 0.8}}}) == []


def test_keys_that_one_side_does_not_have():
    assert changes({"free": {"b": {"c": 2}}}) == [("free.b", ABSENT, {"c": 2})]
    with_key, without = Top({"free": {"b": 2}}), Top()
    assert differences(with_key, without) == [Change("free.b", 2, ABSENT)]
    assert changes({"free": {"b": "(absent)"}}) == [("free.b", ABSENT, "(absent)")]
    assert changes({"maybe": {}}) == [("maybe", None, {"momentum": 0.0})]


@pytest.mark.parametrize(
    ("old", "new"),
    [((1, 2), [1, 2]), (Path("a/b"), "a/b"), (math.nan, math.nan), ([math.nan], [math.nan]), ([(1,)], [[1]])],
)
def test_what_a_file_spells_the_same_is_the_same(old: Any, new: Any):
    assert differences(Config({"a": old}), Config({"a": new})) == []


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), ("1", 1), ("null", None), ([1], [True]), (0.1, 0.1001)])
def test_what_a_file_spells_differently_differs(old: Any, new: Any):
    assert len(differences(Config({"a": old}), Config({"a": new}))) == 1


def test_a_change_reads_as_a_file_would_spell_it():
    assert str(Change("a.b", None, True)) == "a.b: null -> true"
    assert str(Change("a", ABSENT, {"x": [1, "off"], "y": {}})) == "a: (absent) -> {x: [1, 'off'], y: {}}"
    assert str(Change("a", "two\nlines", ABSENT)) == r'a: "two\nlines" -> (absent)'
    assert str(Change("a", 1, object)) == "a: 1 -> <class 'object'>"


@pytest.mark.parametrize("value", ["", "x" * 500, ["y " * 100, {"a": [{"b": 1e-7}]}], {"k": "}"}, "{k: 1}", "é\t"])
def test_a_value_in_a_line_is_yaml(value: Any):
    import yaml

    assert "\n" not in in_line(value)
    assert yaml.safe_load(f"a: {in_line(value)}")["a"] == value
