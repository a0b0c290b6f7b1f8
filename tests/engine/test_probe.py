"""What is recorded, and what is paused, while a step is traced."""

import gc

import pytest

from everstep.engine.probe import collection_paused


@pytest.fixture(autouse=True)
def _nothing_is_frozen():
    """Undoes what `tests/conftest.py` does for speed, for one test."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_a_trace_creates_is_not_visited_right_after_it():
    with collection_paused():
        created = [[] for _ in range(10_000)]
    assert any(old is created for old in gc.get_objects(generation=2))


def test_garbage_of_a_trace_is_found_by_a_full_collection():
    class Node:
        found = False

        def __del__(self):
            Node.found = True

    with collection_paused():
        node = Node()
        node.self = node
        del node
    gc.collect()
    assert Node.found


@pytest.fixture
def frozen():
    gc.freeze()
    assert gc.get_freeze_count() > 0
    yield gc.get_freeze_count()
    gc.unfreeze()


def test_objects_that_the_program_has_frozen_stay_frozen(frozen):
    with collection_paused():
        pass
    assert gc.get_freeze_count() == pytest.approx(frozen, rel=0.01)


def test_a_disabled_collector_stays_disabled():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
