"""Arrays in files that have no name."""

import numpy as np

from everstep.data.array_file import ArrayFile
from everstep.testing.problems import raises_problem


def test_rows_are_read_back_and_the_file_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path))
    rows = np.arange(24, dtype="int32").reshape(6, 4)
    with ArrayFile() as file:
        for part in (rows[:1], np.asfortranarray(rows[1:4]), rows[4:]):
            file.append(part)
        array = file.array()
    np.testing.assert_array_equal(array, rows)
    assert (array.dtype, array.flags.writeable) == (np.int32, False)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path))
    with ArrayFile() as file, open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(file, "_file", full)
        with raises_problem(reason="No space left on device"):
            file.append(np.zeros(10_000, "int32"))
        monkeypatch.undo()
