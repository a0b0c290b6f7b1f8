"""Sums over processes on a CPU: gloo's `psum_scatter` was reported to give wrong ones for large parts (jax#40830)."""

import json

import pytest
from tests.test_gang import Processes

CODE = """
one = gang.join(spans_devices=True)
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("d",))
wrong = {}
for size in SIZES:  # bytes of each process's part
    part = size // 4
    rows = np.stack([(np.arange(part * one.size) % 1021 + 7 * rank).astype("float32") for rank in range(one.size)])
    x = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, P("d")), lambda index: rows[index])
    scatter = jax.shard_map(
        lambda row: jax.lax.psum_scatter(row[0], "d", tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    total = jax.shard_map(lambda row: jax.lax.psum(row[0], "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    expected = rows.sum(axis=0)
    own = np.asarray(jax.jit(scatter)(x).addressable_data(0))
    parts = int((own != expected[part * one.rank : part * (one.rank + 1)]).sum())
    whole = int((np.asarray(jax.jit(total)(x).addressable_data(0)) != expected).sum())
    wrong[size] = [parts, whole]
print(json.dumps(wrong))
"""


@pytest.mark.backend
@pytest.mark.daily("jax")
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_sums_of_large_parts_are_right(size):
    sizes = [2**18, 2**22, 2**23]
    done = Processes(CODE.replace("SIZES", str(sizes)), size).results()
    assert [code for code, _, _ in done.values()] == [0] * size, done
    for _, out, _ in done.values():
        found = json.loads(out.splitlines()[-1])
        assert found == {str(number): [0, 0] for number in sizes}, "fsdp on several processes would train wrongly"
