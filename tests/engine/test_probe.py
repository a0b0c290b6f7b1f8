"""What is recorded, and what is paused, while a step is traced."""

import gc
import weakref

import pytest

from everstep.engine.probe import collection_paused


class Node:
    """An object in a cycle, as what holds a compiled program is."""

    def __init__(self):
        self.self = self


@pytest.fixture
def usual_collector():
    """The collector as Python starts it; `tests/conftest.py` lets it run less often."""
    former = gc.get_threshold()
    gc.collect()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*former)


def test_garbage_of_traces_is_collected(usual_collector):
    """Programs of many runs in one process would otherwise fill its memory."""
    nodes = []
    for _ in range(200):
        with collection_paused():
            made = [Node() for _ in range(2_000)]
            nodes.append(weakref.ref(made[0]))
            del made
        [[] for _ in range(2_000)]
    assert sum(node() is not None for node in nodes) < 100


def test_a_disabled_collector_stays_disabled():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
