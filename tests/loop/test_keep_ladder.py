"""`trainer.keep_ladder`: its sizes, and the checkpoints that it keeps."""

import numpy as np
import pytest

from everstep.checkpoint import OrbaxCheckpointer, Retention
from everstep.loop import TrainerConfig, in_bytes
from everstep.testing.problems import raises_problem


@pytest.mark.parametrize(
    ("size", "expected"),
    [(7, 7), ("1kB", 1000), ("500 MB", 500_000_000), ("2GB", 2_000_000_000), ("1.5TB", 1_500_000_000_000)],
)
def test_a_size_has_a_unit_or_is_in_bytes(size, expected):
    config = TrainerConfig(keep_ladder=size)
    assert in_bytes(config.keep_ladder) == expected


@pytest.mark.parametrize("size", ["2", "2 G", "GB", "-1GB", "2gb", "1e3MB", 0, -5, 1.5, True])
def test_anything_else_is_refused(size):
    with raises_problem(key="keep_ladder", received=size, reason="expected bytes, as '2GB'"):
        TrainerConfig(keep_ladder=size)


def test_checkpoints_are_kept_by_the_size_of_their_files(tmp_path):
    """Each has a megabyte and some files beside it, so two fit into three."""
    checkpointer = OrbaxCheckpointer(tmp_path, Retention(newest=2, ladder_bytes=in_bytes("3MB")))
    for step in range(1, 9):
        checkpointer.save(step, {"w": np.full(1_000_000 // 4, step, "float32")}, {})
    checkpointer.wait()
    kept = checkpointer.steps()
    checkpointer.close()
    assert len(kept) == 4
    assert kept[-2:] == [7, 8]
    assert kept[0] <= 4
