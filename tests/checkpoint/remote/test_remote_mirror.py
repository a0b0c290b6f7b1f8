"""A run that moves from machine to machine through a store."""

import json

import numpy as np
import pytest
from tests.checkpoint.remote.machines import Machine, failing_at, fetched_machine, remote_steps

from everstep import storage
from everstep.checkpoint import manifest
from everstep.checkpoint.digests import digest
from everstep.checkpoint.manifest import Base
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.checkpoint.remote.store import Store, StoreError
from everstep.errors import TrainingError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


@pytest.fixture
def url(place):
    return place.url()


@pytest.fixture
def first(tmp_path, url):
    """A machine that has started a run and saved step 10."""
    machine = Machine(tmp_path / "first", url)
    machine.fetch()
    assert not machine.directory.exists()
    machine.begin()
    machine.save(10)
    return machine


def test_another_machine_continues_from_the_store(first, tmp_path, url):
    first.mirror.commit()
    first.save(20)
    first.save(15, folder="best")
    first.mirror.commit()
    second = fetched_machine(tmp_path, url)
    assert (second.steps(), second.steps("best")) == ([20], [15])
    for name in ("run.json", "config.yaml", "history.csv"):
        assert (second.directory / name).read_bytes() == (first.directory / name).read_bytes()
    assert second.mirror.fetch_older()
    assert second.steps() == [10, 20]
    assert not second.mirror.fetch_older()


@pytest.mark.stores("s3", "gs")
def test_an_interrupted_upload_is_ignored_and_removed(first, tmp_path, url):
    first.mirror.commit()
    first.save(20)
    with failing_at(f"checkpoints/20/{manifest.NAME}"), pytest.raises(StoreError):
        first.mirror.commit()
    assert any(name.startswith("checkpoints/20/") for name in Store(url).listing())
    second = fetched_machine(tmp_path, url)
    assert second.steps() == [10]
    second.save(30)
    second.mirror.commit()
    assert not any(name.startswith("checkpoints/20/") for name in Store(url).listing())
    assert remote_steps(url) == [10, 30]


@pytest.mark.stores("s3", "gs")
def test_a_damaged_checkpoint_is_skipped_and_the_one_before_it_used(first, tmp_path, url, caplog):
    first.save(20)
    first.mirror.commit()
    store = Store(url)
    data = bytearray(store.get_bytes("checkpoints/20/state/d/array"))
    data[100] ^= 1
    store.put_bytes("checkpoints/20/state/d/array", bytes(data))
    second = fetched_machine(tmp_path, url)
    assert second.steps() == [10]
    assert "checkpoints/20 is damaged" in caplog.text
    second.save(20)
    second.mirror.commit()
    assert fetched_machine(tmp_path, url, "third").steps() == [20]


@pytest.mark.stores("file")
def test_no_start_from_scratch_if_all_checkpoints_are_damaged(first, tmp_path, url, caplog):
    first.mirror.commit()
    Store(url).put_bytes("checkpoints/10/meta", b"{}")
    with raises_problem(TrainingError, key=f"{url}/checkpoints", reason="all checkpoints are damaged"):
        fetched_machine(tmp_path, url)
    Store(url).put_bytes("checkpoints/10/manifest.json", b"{")
    with raises_problem(TrainingError, key=f"{url}/checkpoints", reason="all checkpoints are damaged"):
        fetched_machine(tmp_path, url)


@pytest.mark.stores("file")
def test_a_damaged_file_is_reported(first, tmp_path, url):
    first.mirror.commit()
    Store(url).put_bytes("history.csv", b"step,loss\n9,9\n")
    with raises_problem(TrainingError, reason="history.csv is not as it was uploaded", remedy="remove it"):
        fetched_machine(tmp_path, url)
    Store(url).delete(["history.csv"])
    assert fetched_machine(tmp_path, url, "third").steps() == [10]


@pytest.mark.stores("s3")
def test_retention_reaches_the_store_once_it_has_the_kept_checkpoints(first, tmp_path, url):
    first.save(20)
    first.mirror.commit()
    storage.remove_directory(first.directory / "checkpoints" / "10")
    first.mirror.commit()
    assert remote_steps(url) == [20]
    assert not any(name.startswith("checkpoints/10/") for name in Store(url).listing())
    storage.remove_directory(first.directory / "checkpoints" / "20")
    first.mirror.commit()
    assert remote_steps(url) == [20]  # no local checkpoint replaces it


@pytest.mark.stores("file")
def test_older_checkpoints_that_are_not_fetched_yet_are_kept(first, tmp_path, url):
    first.save(20)
    first.mirror.commit()
    second = fetched_machine(tmp_path, url)
    second.save(30)
    second.mirror.commit()
    assert remote_steps(url) == [10, 20, 30]


@pytest.mark.stores("file", "gs")
def test_a_checkpoint_is_replaced_atomically(first, tmp_path, url):
    first.save(10, b"old" * 1000)
    first.mirror.commit()
    first.save(10, b"new" * 1000)
    with failing_at("checkpoints/10/"), pytest.raises(StoreError):
        first.mirror.commit()
    second = fetched_machine(tmp_path, url)
    assert (second.directory / "checkpoints/10.replaced/state/d/array").read_bytes() == b"old" * 1000
    first.mirror.commit()
    third = fetched_machine(tmp_path, url, "third")
    assert (third.directory / "checkpoints/10/state/d/array").read_bytes() == b"new" * 1000
    assert not any("replaced" in name for name in Store(url).listing())


@pytest.mark.stores("file")
def test_a_local_copy_is_kept_until_another_machine_writes(first, tmp_path, url, caplog):
    first.mirror.commit()
    first.save(20)  # not uploaded: as if the network had failed before a restart
    again = fetched_machine(tmp_path, url, "first")
    assert again.steps() == [10, 20]
    second = fetched_machine(tmp_path, url)
    second.begin(attempt=2)
    second.mirror.commit()
    caplog.clear()
    back = fetched_machine(tmp_path, url, "first")
    assert back.steps() == [10]
    assert len(json.loads((back.directory / "run.json").read_text())["attempts"]) == 2
    assert "was written to elsewhere" in caplog.text
    assert len(list(back.directory.with_name(f"{back.directory.name}.aside").glob("checkpoints/*"))) == 2


@pytest.mark.stores("file")
def test_an_emptied_store_starts_from_scratch_and_a_never_used_one_does_not(first, tmp_path, url, caplog):
    assert fetched_machine(tmp_path, url, "first").steps() == [10]  # nothing was ever uploaded, so nothing was removed
    first.mirror.commit()
    store = Store(url)
    store.delete(list(store.listing()))
    back = fetched_machine(tmp_path, url, "first")
    assert not back.directory.exists()
    assert "was emptied" in caplog.text


@pytest.mark.stores("file")
def test_a_run_directory_that_a_user_has_copied_to_the_store(first, tmp_path, url):
    for path in first.directory.rglob("*"):
        if path.is_file():
            Store(url).put(path.relative_to(first.directory).as_posix(), path)
    second = fetched_machine(tmp_path, url)
    assert second.steps() == [10]
    second.save(20)
    second.mirror.commit()
    assert remote_steps(url) == [10, 20]


@pytest.mark.stores("file")
def test_a_checkpoint_that_is_removed_during_its_upload_arrives(first, url, monkeypatch):
    put = Store.put

    def with_removal(store, name, *args):
        if name.startswith("checkpoints/10/"):
            storage.remove_directory(first.directory / "checkpoints/10")
        return put(store, name, *args)

    monkeypatch.setattr(Store, "put", with_removal)
    first.mirror.commit()
    assert remote_steps(url) == [10]


@pytest.mark.stores("file")
def test_a_checkpoint_that_is_damaged_on_disk_is_not_uploaded(first, url, caplog):
    first.save(20)
    (first.directory / "checkpoints/20/meta").write_text("{}        ")
    first.mirror.commit()
    first.mirror.commit()
    assert remote_steps(url) == [10]
    assert caplog.text.count("is not uploaded") == 1


@pytest.mark.stores("file")
def test_only_changed_files_are_uploaded(first, monkeypatch):
    first.mirror.commit()
    sent = []
    put = Store.put
    monkeypatch.setattr(Store, "put", lambda store, name, *args: (sent.append(name), put(store, name, *args))[1])
    first.mirror.commit()
    assert sent == []
    (first.directory / "history.csv").write_text("step,loss\n1,2\n")
    (first.directory / "config.yaml").touch()
    first.mirror.commit()
    assert sent == [".everstep/index.json", "history.csv", ".everstep/index.json"]


@pytest.mark.stores("memory", "s3")
def test_frozen_weights_are_in_the_store_before_the_checkpoints_that_need_them(first, tmp_path, url):
    def saved(step):
        checkpointer = OrbaxCheckpointer(first.directory / "checkpoints", run="run-1")
        if not checkpointer.has_base(base):
            checkpointer.save_base(base, frozen)
        checkpointer.save(step, {"model/b": np.full(3, step)}, {"step": step}, base=base)
        checkpointer.close()

    frozen = {"model/a": np.arange(5.0)}
    base = Base(digest(frozen), variables=1)
    first.mirror.commit()
    saved(20)
    name = f"base/{base.digest[:16]}/{manifest.NAME}"
    with failing_at(name), pytest.raises(StoreError):
        first.mirror.commit()
    assert remote_steps(url) == [10]
    assert fetched_machine(tmp_path, url).steps() == [10]
    first.mirror.commit()
    saved(30)
    with failing_at(name):  # it is not uploaded again
        first.mirror.commit()
    assert remote_steps(url) == [10, 20, 30]
    second = fetched_machine(tmp_path, url, "third")
    state, _ = OrbaxCheckpointer(second.directory / "checkpoints", run="run-1").restore()
    np.testing.assert_array_equal(state["model/a"], frozen["model/a"])
    assert (state["model/b"] == 30).all()
