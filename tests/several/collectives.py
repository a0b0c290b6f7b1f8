"""Sums over processes on a CPU: gloo's `psum_scatter` was reported to give wrong ones for large parts (jax#40830)."""

from collections.abc import Sequence

import numpy as np

from everstep.gang import Gang

SIZES = (2**18, 2**22, 2**23)
"""Bytes of each process's part."""


def wrong_sums(gang: Gang, sizes: Sequence[int] = SIZES) -> dict[int, list[int]]:
    """Returns how many numbers are wrong, by size: of sums in parts, and of whole ones."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("d",))
    wrong = {}
    for size in sizes:
        part = size // 4
        rows = np.stack(
            [(np.arange(part * gang.size) % 1021 + 7 * rank).astype("float32") for rank in range(gang.size)]
        )
        x = jax.make_array_from_callback(rows.shape, NamedSharding(mesh, P("d")), lambda index, rows=rows: rows[index])
        scatter = jax.shard_map(
            lambda row: jax.lax.psum_scatter(row[0], "d", tiled=True), mesh=mesh, in_specs=P("d"), out_specs=P("d")
        )
        total = jax.shard_map(lambda row: jax.lax.psum(row[0], "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
        expected = rows.sum(axis=0)
        own = np.asarray(jax.jit(scatter)(x).addressable_data(0))
        parts = int((own != expected[part * gang.rank : part * (gang.rank + 1)]).sum())
        whole = int((np.asarray(jax.jit(total)(x).addressable_data(0)) != expected).sum())
        wrong[size] = [parts, whole]
    return wrong
