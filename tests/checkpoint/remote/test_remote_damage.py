"""Interrupted uploads, damaged disks, lost objects, and readers of a run that is being trained."""

import pytest
from tests.checkpoint.remote.machines import Machine, fetched_machine, remote_steps

from everstep import storage
from everstep.checkpoint import manifest
from everstep.checkpoint.remote import local_view, run_copies
from everstep.checkpoint.remote.store import Store, StoreError
from everstep.errors import TrainingError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.stores("file")


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def url(place, monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "views"))
    return place.url()


@pytest.fixture
def first(tmp_path, url):
    """A machine whose checkpoints 10 and 20 are in the store."""
    machine = Machine(tmp_path / "first", url)
    machine.fetch()
    machine.begin()
    machine.save(10, b"ten" * 1000)
    machine.save(20, b"twenty" * 1000)
    machine.mirror.commit()
    return machine


def breaking(error, at):
    """Makes uploads raise `error` at the first object whose name `at` accepts."""
    put = Store.put

    def broken(store, name, *args):
        if at(name):
            raise error
        return put(store, name, *args)

    patch = pytest.MonkeyPatch()
    patch.setattr(Store, "put", broken)
    return patch


def test_the_store_is_usable_after_two_interrupted_uploads(first, tmp_path, url):
    """The store has the second of three versions of a file; the index announces the third, which never arrived."""
    broken = [(StoreError("500"), lambda name: name == "config.yaml"), (Killed(), lambda name: name == "history.csv")]
    for number, (error, at) in enumerate(broken, 2):
        for name in ("history.csv", "config.yaml"):
            (first.directory / name).write_text(f"{name} {number}\n")
        patch = breaking(error, at)
        with pytest.raises(type(error)):
            first.mirror.commit()
        patch.undo()
    assert Store(url).get_bytes("history.csv") == b"history.csv 2\n"
    second = fetched_machine(tmp_path, url)
    assert (second.directory / "history.csv").read_text() == "history.csv 2\n"
    assert (second.directory / "config.yaml").read_text() == "seed: 1\n"


@pytest.mark.parametrize("content", [b"twenty" * 1000, b"otherwise" * 1000], ids=["same", "other"])
def test_an_incomplete_checkpoint_is_skipped_and_can_be_written_again(first, tmp_path, url, caplog, content):
    Store(url).delete(["checkpoints/20/state/d/array"])
    second = fetched_machine(tmp_path, url)
    assert second.steps() == [10]
    assert "checkpoints/20 is damaged: there is no" in caplog.text
    second.save(20, content)
    if content.startswith(b"twenty"):  # the same bits, in the manifest, too
        storage.remove_directory(second.directory / "checkpoints/20")
        (first.directory / "checkpoints/20").rename(second.directory / "checkpoints/20")
    second.mirror.commit()
    third = fetched_machine(tmp_path, url, "third")
    assert third.steps() == [20]
    assert (third.directory / "checkpoints/20/state/d/array").read_bytes() == content


def test_an_error_is_raised_if_every_checkpoint_is_incomplete(first, tmp_path, url):
    Store(url).delete(["checkpoints/20/meta", "checkpoints/10/state/d/array"])
    with raises_problem(TrainingError, key=f"{url}/checkpoints", reason="are damaged", remedy="restore one"):
        fetched_machine(tmp_path, url)


def test_a_local_manifest_that_is_damaged_does_not_remove_the_copy_in_the_store(first, tmp_path, url):
    path = first.directory / "checkpoints/20" / manifest.NAME
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    first.save(30)
    first.mirror.commit()
    assert remote_steps(url) == [10, 20, 30]
    Store(url).delete([f"checkpoints/30/{manifest.NAME}"])
    assert fetched_machine(tmp_path, url).steps() == [20]


def test_a_reader_of_a_live_run_gets_a_consistent_state(first, url, monkeypatch):
    """The trainer writes after the reader has read the index and before it reads the files."""
    fetch, attempts = run_copies.fetch_files, []

    def after_a_commit(contents, directory):
        attempts.append(contents)
        if len(attempts) <= 2:
            (first.directory / "history.csv").write_text("step,loss\n" + "1,1\n" * len(attempts))
            first.mirror.commit()
        fetch(contents, directory)

    monkeypatch.setattr(run_copies, "fetch_files", after_a_commit)
    assert (local_view(url) / "history.csv").read_text() == "step,loss\n1,1\n1,1\n"
    assert len(attempts) == 3


def test_a_damaged_file_of_a_finished_run_is_reported_at_the_first_attempt(first, url, monkeypatch):
    fetch, attempts = run_copies.fetch_files, []
    monkeypatch.setattr(run_copies, "fetch_files", lambda *args: (attempts.append(1), fetch(*args)))
    Store(url).put_bytes("history.csv", b"9,9\n")
    with raises_problem(TrainingError, reason="history.csv is not as it was uploaded"):
        local_view(url)
    assert len(attempts) == 1


def test_the_newest_checkpoint_does_not_wait_for_older_ones(first, url, monkeypatch):
    """A machine has three checkpoints that the store lacks, and saves a fourth while the first of them is uploaded."""
    for step in (30, 40, 50):
        first.save(step)
    put, order = Store.put, []

    def watched(store, name, *args):
        if name.endswith(manifest.NAME):
            order.append(int(name.split("/")[-2]))
        if name == "checkpoints/50/meta":
            first.save(60)
            first.save(45, folder="best")
        return put(store, name, *args)

    monkeypatch.setattr(Store, "put", watched)
    first.mirror.commit()
    assert order == [50, 45, 60, 40, 30]  # what a checkpoint may refer to is uploaded before it
    assert remote_steps(url) == [10, 20, 30, 40, 50, 60]
    assert Store(url).get_bytes("history.csv") == (first.directory / "history.csv").read_bytes()
    first.mirror.commit()
    assert len(order) == 5
