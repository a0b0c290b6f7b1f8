"""Leaves of dicts in dicts."""

import pytest

from everstep.config import cast_leaf_nested_dict, get_leaf_nested_dict
from everstep.errors import UsageError


def test_the_leaf_that_keys_lead_to():
    logs = {"retrieval": {"top": {"accuracy": 0.5}}, "loss": None}
    assert get_leaf_nested_dict(logs, ["retrieval", "top", "accuracy"]) == 0.5
    assert get_leaf_nested_dict(logs, ["loss"]) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a", "c"], "there is no key 'c': known: 'bb'"),
        (["a", "bb", "c"], "there is no key 'c': 1 is not a dict"),
        (["a"], "leads to a dict, not to a value: add one of 'bb'"),
    ],
)
def test_keys_that_lead_to_no_leaf(keys, message):
    with pytest.raises(UsageError, match=message):
        get_leaf_nested_dict({"a": {"bb": 1}}, keys)


def test_leaves_are_cast_in_place():
    tree = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert cast_leaf_nested_dict(tree, str) is tree
    assert tree == {"a": {"b": "1", "c": {"d": "2"}}, "e": "3"}
