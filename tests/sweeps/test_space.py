"""Spaces: what a file and a command line say, and what they must not say."""

import pytest

from everstep.errors import UsageError
from everstep.sweeps.space import Space, create_space, is_swept, parse_dimension

FILE = """\
task:
  units: [8, 16]
  noise: {low: 0.0, high: 0.5, step: 0.25}
rate: {low: 1e-4, high: 1e-1, log: true}
layers: {low: 1, high: 4}
kind: [adam, sgd]
momentum: {low: 0.5, high: 0.9, when: {kind: sgd}}
steps: 100
constraints: ["task.units * layers <= 32"]
"""


@pytest.fixture
def space(tmp_path) -> Space:
    (tmp_path / "space.yaml").write_text(FILE)
    return create_space(tmp_path / "space.yaml")


def test_a_file(space):
    kinds = {one.key: one.kind for one in space.dimensions}
    assert kinds == {
        "task.units": "categorical",
        "task.noise": "float",
        "rate": "float",
        "layers": "int",
        "kind": "categorical",
        "momentum": "float",
    }
    assert space.fixed == {"steps": 100}
    assert [one.log for one in space.dimensions if one.key == "rate"] == [True]
    assert Space.from_dict(space.as_dict()).as_dict() == space.as_dict()


def test_conditions_and_constraints(space):
    by_key = {one.key: one for one in space.dimensions}
    assert by_key["momentum"].is_active({"kind": "sgd"})
    assert not by_key["momentum"].is_active({"kind": "adam"})
    assert space.broken({"task.units": 16, "layers": 3}) == "task.units * layers <= 32"
    assert space.broken({"task.units": 16, "layers": 2}) is None
    assert space.broken({"task.units": 16}) is None  # on a key that is not used it holds


def test_every_value_is_tried_before_the_first_trial(space):
    tried = list(space.samples())
    assert {values["kind"] for dimension, values in tried if dimension.key == "kind"} == {"adam", "sgd"}
    assert all(values["kind"] == "sgd" for dimension, values in tried if dimension.key == "momentum")
    assert [values["momentum"] for dimension, values in tried if dimension.key == "momentum"] == [0.5, 0.9]


def test_a_grid_leaves_unused_keys_out():
    space = create_space({"kind": ["a", "b"], "depth": {"low": 1, "high": 2, "when": {"kind": "b"}}})
    assert space.grid() == [{"kind": "a"}, {"kind": "b", "depth": 1}, {"kind": "b", "depth": 2}]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,3", (1, 2, 3)),
        ("1e-3,0.5", (1e-3, 0.5)),
        ("relu,tanh", ("relu", "tanh")),
        ("true,null", (True, None)),
        ("range(3)", (0, 1, 2)),
        ("range(1,4)", (1, 2, 3)),
        ("range(0, 1, 0.5)", (0.0, 0.5)),
        ("range(2,9,3)", (2, 5, 8)),
        ("choice(a, b)", ("a", "b")),
        ("[8,8],[16]", ([8, 8], [16])),
        ("'a,b',c", ("a,b", "c")),
    ],
)
def test_the_command_line(text, values):
    assert is_swept(f"key={text}")
    assert parse_dimension("key", text).points() == values


def test_intervals_of_the_command_line():
    found = parse_dimension("key", "tag(log, interval(1e-4, 1e-1))")
    assert (found.kind, found.low, found.high, found.log) == ("float", 1e-4, 1e-1, True)
    assert parse_dimension("key", "interval(0,1)").points() is None
    assert parse_dimension("key", "int(interval(1,3))").points() == (1, 2, 3)
    found = parse_dimension("key", "tag(log, int(interval(1, 64)))")
    assert (found.kind, found.high, found.log) == ("int", 64, True)


@pytest.mark.parametrize("text", ["range(a)", "interval(1)", "tag(lin,interval(0,1))", "tag(log,range(3))", "int(3)"])
def test_calls_that_are_wrong(text):
    with pytest.raises(UsageError) as caught:
        parse_dimension("key", text)
    assert (caught.value.key, caught.value.reason.split()[0]) == ("key", "expected")


@pytest.mark.parametrize("word", ["key=1", "key=[1,2]", "key='1,2'", "key={a: 1, b: 2}", "a=1,b=2", "key="])
def test_what_only_sets_a_key(word):
    assert not is_swept(word)


def test_words_are_read_back_as_the_same_values():
    from everstep.config.overrides import parse_override

    for value in (1, 1.0, 1e-7, True, None, "relu", "1", "a b", "null", "", [1, 2], {"a": 1}):
        (word,) = Space((), {"key": value}).words({})
        assert parse_override(word) == ("key", value)


@pytest.mark.parametrize(
    ("tree", "key", "reason"),
    [
        ({}, "--space", "is empty"),
        ({"steps": 100}, "--space", "is empty"),
        ({"a": []}, "a", "at least one value"),
        ({"a": [1, 1]}, "a", "twice"),
        ({"a": {"low": 2, "high": 1}}, "a", "low is above high"),
        ({"a": {"low": 0.0, "high": 1.0, "log": True}}, "a", "low must be above 0"),
        ({"a": {"low": "x", "high": 1}}, "a", "low must be a number"),
        ({"a": {"low": 1, "high": 2, "stpe": 1}}, "a.stpe", "unknown field"),
        ({"a": {"low": 1, "high": 2, "when": {"b": 1}}}, "a.when", "does not vary"),
        ({"a": [1], "b": {"values": [1], "when": {"a": 2}}}, "b.when", "never has this value"),
        ({"a": {"values": [1], "when": {"b": 1}}, "b": {"values": [1], "when": {"a": 1}}}, "a.when", "leads back"),
        ({"a": [1], "constraints": ["b < 1"]}, "constraints", "no key 'b'"),
        ({"a": [1], "constraints": ["a <"]}, "constraints", "is not a condition"),
        ({"a": [1], "constraints": ["__import__('os')"]}, "constraints", "are allowed"),
    ],
)
def test_bad_spaces(tree, key, reason):
    with pytest.raises(UsageError) as caught:
        create_space(tree)
    assert caught.value.key == key
    assert reason in caught.value.reason


def test_errors_name_file_and_line(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text("a: [1, 2]\nb: {low: 3, high: 1}\n")
    with pytest.raises(UsageError) as caught:
        create_space(path)
    assert caught.value.origin == f"{path}:2"
