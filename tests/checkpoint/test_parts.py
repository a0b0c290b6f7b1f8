"""Arrays that are divided over processes: written by all, committed by one, read by any number.

The processes are threads of this one, each with a checkpointer of its own.
"""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from tests.pretended_gang import Board, Pretended, together

from everstep.checkpoint import arrays, manifest, partial_read, parts
from everstep.checkpoint.averaging import average
from everstep.checkpoint.checkpointer import SaveError
from everstep.checkpoint.digests import digest
from everstep.checkpoint.manifest import Damaged
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.retention import Retention
from everstep.checkpoint.shared import SharedCheckpointer, _AllReaders
from everstep.errors import TrainingError
from everstep.types import ArrayParts


def state(step=1):
    random = np.random.default_rng(step)
    return {
        "model/kernel": random.normal(size=(8, 6)).astype("float32"),
        "model/table": random.normal(size=(4, 2, 3)).astype(ml_dtypes.bfloat16),
        "model/counts": random.integers(0, 99, size=(8,)),
        "model/bias": random.normal(size=6).astype("float32"),
        "model/none": np.zeros((0, 3), "float32"),
    }


def divided(whole, rank, size):
    """The state as one process has it: columns of the first array, rows of the others; small ones are whole."""
    found = dict(whole)
    for key, axis in (("model/kernel", 1), ("model/table", 0), ("model/counts", 0)):
        array, each = whole[key], whole[key].shape[axis] // size
        start = [0] * array.ndim
        start[axis] = rank * each
        part = np.take(array, range(rank * each, (rank + 1) * each), axis)
        found[key] = ArrayParts(array.shape, array.dtype, [(tuple(start), part)])
    return found


def save(folder, size=2, steps=(1,), fails=None, **arguments):
    seen = []

    def work(gang, rank):
        own = OrbaxCheckpointer(folder, Retention(newest=2), saved=lambda step, state: seen.append(digest(state)))
        shared = SharedCheckpointer(own, gang, folder)
        for step in steps:
            held = divided(state(step), rank, size)
            if rank == fails:
                held["model/kernel"] = ArrayParts((8, 6), np.dtype("float32"), [((0, 0), None)])
            shared.save(step, held, {"step": step}, **arguments)
        try:
            shared.wait()
        except SaveError as error:
            return str(error)
        return shared.steps()

    return together(size, work), seen


@pytest.fixture(scope="module")
def saved_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    steps, digests = save(folder, steps=(1, 2, 3))
    assert steps[0] == [2, 3]
    assert digests == [digest(state(step)) for step in (1, 2, 3)], "the record of the run has digests of other bits"
    return folder


def assert_same(found, expected):
    assert digest(found) == digest(expected)


def test_any_number_of_processes_reads_what_two_have_written(saved_checkpoints):
    assert not [path for path in saved_checkpoints.iterdir() if not path.name.isdecimal()], (
        "something temporary is left"
    )
    assert_same(OrbaxCheckpointer(saved_checkpoints).restore()[0], state(3))
    for size in (2, 4):
        for found, meta in restore(saved_checkpoints, size):
            assert meta == {"step": 3}
            assert_same(found, state(3))
            place = slice(1, 7), slice(2, 5)  # across both parts
            np.testing.assert_array_equal(found["model/kernel"].read(place), state(3)["model/kernel"][place])


def restore(folder, size, step=None):
    """What each of several processes restores."""

    def work(gang, rank):
        own = OrbaxCheckpointer(folder, repair=rank == 0)
        return SharedCheckpointer(own, gang, folder).restore(step)

    return together(size, work)


@pytest.fixture
def hashed(monkeypatch):
    """The files whose bytes are checked: [path]."""
    seen, check = [], manifest._sha256
    monkeypatch.setattr(manifest, "_sha256", lambda path: seen.append(path) or check(path))
    return seen


@pytest.mark.parametrize("size", [2, 3])
def test_every_file_is_checked_by_one_process(saved_checkpoints, hashed, size):
    restore(saved_checkpoints, size)
    assert sorted(str(path.relative_to(saved_checkpoints / "3")) for path in hashed) == sorted(
        manifest.read(saved_checkpoints / "3").files
    )


def test_a_process_checks_its_parts_and_a_share_of_the_rest():
    files = {f"parts/{rank}/data": [100, ""] for rank in range(4)}
    files |= {"state/a": [70, ""], "state/b": [40, ""], "state/c": [30, ""], "parts": [9, ""]}
    four = [_AllReaders(Pretended(rank, 4, Board())).chosen(files) for rank in range(4)]
    assert four[:2] == [{"parts/0/data", "state/a"}, {"parts/1/data", "state/b"}]
    assert four[2:] == [{"parts/2/data", "state/c"}, {"parts/3/data", "parts"}]
    two = [_AllReaders(Pretended(rank, 2, Board())).chosen(files) for rank in range(2)]
    assert [sum(files[path][0] for path in own) for own in two] == [279, 270]
    assert set.union(*two) == set(files)


def test_other_readers_know_parts(saved_checkpoints):
    whole = state(3)
    path = saved_checkpoints / "3"
    assert partial_read.shapes(path) == {key: array.shape for key, array in whole.items() if array.size}
    some = ["model/table", "model/bias"]
    assert_same(partial_read.read(path, some), {key: whole[key] for key in some})
    mean = average([saved_checkpoints / "2", path], lambda keys: {key: key for key in keys})
    expected = (state(2)["model/kernel"].astype(float) + whole["model/kernel"]) / 2
    np.testing.assert_array_equal(mean["model/kernel"], expected.astype("float32"))
    assert set(mean) == set(whole)


def test_every_process_has_a_folder(saved_checkpoints, tmp_path):
    """The first one also has the small arrays that are not divided."""
    assert manifest.verify(saved_checkpoints / "3").format == manifest.IN_PARTS
    indexes = [
        json.loads((saved_checkpoints / "3" / parts.FOLDER / rank / "index.json").read_text()) for rank in ("0", "1")
    ]
    assert set(indexes[1]) == {"model/kernel", "model/table", "model/counts"}
    assert set(indexes[0]) == {*indexes[1], "model/bias"}
    assert {path.name for path in (saved_checkpoints / "3" / parts.FOLDER).iterdir()} == {"0", "1"}


@pytest.mark.parametrize("name", ["data", "index.json"])
def test_a_changed_part_is_damage(saved_checkpoints, tmp_path, name):
    shutil.copytree(saved_checkpoints, tmp_path / "run")
    broken(tmp_path / "run" / "3" / parts.FOLDER / "1" / name)
    found, meta = OrbaxCheckpointer(tmp_path / "run").restore()
    assert meta == {"step": 2}
    assert_same(found, state(2))
    assert (tmp_path / "run" / "3.damaged").is_dir()


def broken(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("size", [2, 3])
def test_damage_that_one_process_finds_is_known_to_all(saved_checkpoints, tmp_path, size):
    """Whichever file it is, all processes restore the checkpoint before; the damaged one is set aside once."""
    for number, path in enumerate(sorted(manifest.read(saved_checkpoints / "3").files)):
        folder = shutil.copytree(saved_checkpoints, tmp_path / str(number))
        broken(folder / "3" / path)
        for found, meta in restore(folder, size):
            assert meta == {"step": 2}
            assert_same(found, state(2))
        assert sorted(entry.name for entry in folder.iterdir()) == ["2", "3.damaged"]


def test_a_damaged_step_that_was_asked_for_is_an_error_of_all(saved_checkpoints, tmp_path):
    folder = shutil.copytree(saved_checkpoints, tmp_path / "run")
    broken(folder / "3" / parts.FOLDER / "1" / "data")

    def work(gang, rank):
        with pytest.raises(TrainingError) as error:
            SharedCheckpointer(OrbaxCheckpointer(folder), gang, folder).restore(3)
        return error.value.reason

    for reason in together(2, work):
        assert reason == f"the checkpoint '{folder / '3'}' is damaged: parts/1/data has other content than was written"


def test_a_checkpoint_that_was_being_replaced_is_read_by_all(saved_checkpoints, tmp_path):
    """A kill between two renames leaves the former one under another name."""
    folder = shutil.copytree(saved_checkpoints, tmp_path / "run")
    (folder / "3").rename(folder / "3.replaced")
    assert [meta for _, meta in restore(folder, 2)] == [{"step": 3}, {"step": 3}]


def changed(**entry):
    return lambda index: index["model/kernel"] | entry


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda index: None, "24 of 48 elements of model/kernel are there"),
        (changed(shape=[8, 60]), "are not of one array"),
        (changed(dtype="object"), "not of one array|do not fit"),
        (changed(parts=[{"start": [0, 9], "shape": [8, 3], "offset": 0}]), "do not fit"),
        (changed(parts=[{"start": [-3, 3], "shape": [8, 3], "offset": 0}]), "these are no dimensions"),
        (changed(parts=[{"start": [0, 0], "shape": [8, 3], "offset": 0}]), "48 of 48"),
        (changed(parts=[{"start": [0, 3], "shape": [8, 3], "offset": 1 << 40}]), "do not fit"),
        (changed(parts=[{"start": [0, 3], "shape": [8, 3]}]), "cannot be used: KeyError"),
    ],
)
def test_parts_that_do_not_fit_are_refused(saved_checkpoints, tmp_path, change, reason):
    """As in a checkpoint of a stranger, whose manifest is right."""
    path = shutil.copytree(saved_checkpoints / "3", tmp_path / "3")
    file = path / parts.FOLDER / "1" / "index.json"
    index = json.loads(file.read_text())
    if (entry := change(index)) is None:
        shutil.rmtree(file.parent)
    else:
        file.write_text(json.dumps({**index, "model/kernel": entry}))
    for reading in (partial_read.shapes, arrays.read):
        with pytest.raises(Damaged, match=reason):
            reading(path)


def test_a_process_that_cannot_write_fails_the_save_of_all(tmp_path):
    save(tmp_path / "run")
    for rank in (0, 1):
        errors, digests = save(tmp_path / "run", fails=rank, steps=(2,))
        assert all("step 2 could not be saved" in error for error in errors), errors
        assert not digests
        assert_same(OrbaxCheckpointer(tmp_path / "run").restore()[0], state(1))
    save(tmp_path / "run", steps=(2,))  # and removes what is left of them
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["1", "2"]


def test_a_step_is_saved_once_or_replaced(tmp_path):
    save(tmp_path / "run", steps=(1, 1))
    first = (tmp_path / "run" / "1").stat().st_ino
    save(tmp_path / "run", steps=(1,))
    assert (tmp_path / "run" / "1").stat().st_ino == first
    save(tmp_path / "run", steps=(1,), replace=True)
    assert (tmp_path / "run" / "1").stat().st_ino != first
