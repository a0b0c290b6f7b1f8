"""Mapping, walking and stacking nested batches."""

import collections

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from everstep.data import nest
from everstep.testing.problems import raises_problem

Point = collections.namedtuple("Point", ["x", "y"])
leaves = st.integers(-100, 100).map(np.int64)
trees = st.recursive(
    leaves | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=8,
)


@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(trees)
def test_map_keeps_structure_and_order(tree):
    doubled = nest.map_leaves(lambda leaf: leaf * 2, tree)
    assert nest.structure(doubled) == nest.structure(tree)
    assert nest.flatten(doubled) == [leaf * 2 for leaf in nest.flatten(tree)]


@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(trees)
def test_paths_evaluate_to_the_leaves(tree):
    assert all(eval(f"tree{path}", {"tree": tree}) == leaf for path, leaf in nest.walk(tree))


@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(trees, st.integers(1, 4))
def test_indexing_undoes_stack(tree, count):
    many = [nest.map_leaves(lambda leaf, i=i: leaf + i, tree) for i in range(count)]
    stacked = nest.stack(many)
    assert [nest.map_leaves(lambda leaf, i=i: leaf[i], stacked) for i in range(count)] == many


def test_types_and_key_order_are_kept():
    tree = {"b": Point(1, [2]), "a": (None, 3)}
    mapped = nest.map_leaves(str, tree)
    assert list(mapped) == ["b", "a"]
    assert mapped == {"b": Point("1", ["2"]), "a": (None, "3")}
    assert isinstance(mapped["b"], Point)
    assert nest.flatten(tree) == [1, 2, 3]


def test_stack_matches_keys_by_name():
    stacked = nest.stack([{"a": 1, "b": 2}, {"b": 20, "a": 10}])
    assert stacked["a"].tolist() == [1, 10]


@pytest.mark.parametrize("other", [{"b": 1}, [1], {"a": [1]}, {"a": None}, {"a": 1, "b": 2}])
def test_stack_refuses_other_nestings(other):
    with raises_problem(reason="different nestings"):
        nest.stack([{"a": 1}, other])


def test_stack_names_different_shapes():
    with raises_problem(reason=r"\(2,\), \(3,\)"):
        nest.stack([np.zeros(2), np.zeros(3)])
