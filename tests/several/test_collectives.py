"""Sums over four processes; those over two are in `test_divided_state.py`, in processes that are there anyway."""

import json

import pytest
from tests.gang.processes import Processes
from tests.several.launched import HERE

pytestmark = [pytest.mark.full, pytest.mark.backend, pytest.mark.daily("jax"), pytest.mark.timeout(1200)]


def test_sums_of_large_parts_are_right():
    code = f"""
    one = gang.join(spans_devices=True)
    sys.path.insert(0, {str(HERE)!r})
    from collectives import wrong_sums
    print(json.dumps(wrong_sums(one)))
    """
    done = Processes(code, 4).results(900)
    assert [code for code, _, _ in done.values()] == [0] * 4, done
    for _, out, _ in done.values():
        found = json.loads(out.splitlines()[-1])
        assert set(map(tuple, found.values())) == {(0, 0)}, "fsdp on several processes would train wrongly"
