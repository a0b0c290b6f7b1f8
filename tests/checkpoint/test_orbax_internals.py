"""A save beside others of the process, such as one by Keras's `OrbaxCheckpoint`: they do not disturb each other."""

import os
import threading

import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.futures.synchronization import OperationIdGenerator
from orbax.checkpoint._src.serialization import tensorstore_utils

from everstep.checkpoint import arrays
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.orbax_internals import own_save

STATE = {f"model/layer_{number}/kernel": np.full((4, 4), number, "float32") for number in range(10)}
SAVES = 8


def test_saves_of_two_threads_at_once(tmp_path):
    """Without ids of their own they write into directories that are not there yet, or wait for ever."""
    failed = []

    def save(write):
        try:
            for number in range(SAVES):
                write(number)
        except Exception as error:
            failed.append(error)

    others = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    theirs = lambda number: others.save(tmp_path / f"theirs{number}", args=ocp.args.PyTreeSave({"a": np.ones(4)}))  # noqa: E731
    ours = lambda number: arrays.write(tmp_path / f"ours{number}", STATE, {"number": number})  # noqa: E731
    threads = [threading.Thread(target=save, args=(write,), daemon=True) for write in (theirs, ours)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a save waits for one that nobody makes"
    others.close()
    assert not failed
    for number in range(SAVES):
        state, meta = arrays.read(tmp_path / f"ours{number}")
        assert meta == {"number": number}
        assert all(np.array_equal(state[key], STATE[key]) for key in STATE)


def test_only_a_save_of_ours_has_an_id_of_its_own_and_does_not_sync_each_file():
    def seen():
        synced = tensorstore_utils.get_ts_context()["file_io_sync"].to_json()
        return OperationIdGenerator.get_current_operation_id(), synced is False

    before, elsewhere, ids = seen(), [], set()
    for _ in range(2):
        with own_save():
            OperationIdGenerator.next_operation_id()
            thread = threading.Thread(target=lambda: elsewhere.append(seen()))
            thread.start()
            thread.join()
            ids.add(seen())
    assert len(ids) == 2
    assert all(name.startswith("everstep-") and unsynced for name, unsynced in ids)
    assert elsewhere == [before, before] == [seen(), seen()]
    assert before[1] is False


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no way to see what a descriptor is of")
def test_what_is_committed_is_on_disk(tmp_path, monkeypatch):
    """Every file and folder of a checkpoint is synced before it gets its name."""
    synced, sync = set(), os.fsync

    def fsync(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    renamed, rename = {}, os.replace

    def replace(source, target):
        if os.path.isdir(source):
            renamed[os.fspath(target)] = (os.fspath(source), set(synced))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    checkpointer = OrbaxCheckpointer(tmp_path)
    checkpointer.save(3, STATE, {})
    checkpointer.close()
    source, before = renamed[str(tmp_path / "3")]
    for folder, _, files in os.walk(tmp_path / "3"):
        inside = os.path.join(source, os.path.relpath(folder, tmp_path / "3")).removesuffix("/.")
        assert inside in before
        for name in set(files) - {"manifest.json"}:  # written under another name
            assert os.path.join(inside, name) in before
    assert str(tmp_path) in synced - before
