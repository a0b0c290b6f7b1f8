"""Leaves of dicts in dicts."""

import pytest

from everstep.config import cast_leaf_nested_dict, get_leaf_nested_dict
from everstep.testing.problems import raises_problem


def test_the_leaf_that_keys_lead_to():
    logs = {"retrieval": {"top": {"accuracy": 0.5}}, "loss": None}
    assert get_leaf_nested_dict(logs, ["retrieval", "top", "accuracy"]) == 0.5
    assert get_leaf_nested_dict(logs, ["loss"]) is None


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        (["a", "c"], {"key": "['a', 'c']", "reason": "there is no key 'c'", "remedy": "known: 'bb'"}),
        (["a", "bb", "c"], {"key": "['a', 'bb', 'c']", "reason": "there is no key 'c'", "remedy": "1 is not a dict"}),
        (["a"], {"key": "['a']", "reason": "leads to a dict, not to a value", "remedy": "add one of 'bb'"}),
    ],
)
def test_keys_that_lead_to_no_leaf(keys, fields):
    with raises_problem(**fields):
        get_leaf_nested_dict({"a": {"bb": 1}}, keys)


def test_leaves_are_cast_in_place():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert cast_leaf_nested_dict(tree, str) is tree
    assert tree == {"a": {"b": "1", "c": {"d": "2"}}, "e": "3"}
