"""Data files in a store: matched by a glob, fetched once, verified."""

from pathlib import Path

import numpy as np
import pytest

from everstep.checkpoint.remote import local_files
from everstep.checkpoint.remote.store import Store
from everstep.data.files import find_files
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))


def test_files_are_fetched_once_and_again_when_they_change(place, capsys):
    url = place.url("data")
    store = Store(url)
    for number in (2, 0, 1):
        store.put_bytes(f"train-{number}.tfrec", bytes([number]) * 1000)
    store.put_bytes("valid-0.tfrec", b"v")
    found = local_files(f"{url}/train-*.tfrec")
    assert [name.rpartition("/")[2] for name in found] == [f"train-{number}.tfrec" for number in range(3)]
    assert [Path(path).read_bytes() for path in found.values()] == [bytes([number]) * 1000 for number in range(3)]
    assert "fetching 3 data files, 0.0 MB" in capsys.readouterr().err
    assert local_files(f"{url}/train-*.tfrec") == found
    assert capsys.readouterr().err == ""
    store.put_bytes("train-1.tfrec", b"changed" * 50)
    again = local_files(f"{url}/train-1.tfrec")
    assert [Path(path).read_bytes() for path in again.values()] == [b"changed" * 50]
    assert local_files(f"{url}/nothing-*") == {}
    assert local_files(f"{url}/nothing") == {}


@pytest.mark.stores("s3")
def test_an_unreachable_store_is_reported_with_the_key(place, monkeypatch):
    monkeypatch.setenv("EVERSTEP_STORE_TIMEOUT", "0.5")
    place.network.fault = "refuse"
    pattern = f"{place.url()}/*"
    with pytest.raises(UsageError) as error:
        local_files(pattern, "task.train_data.input_path")
    assert (error.value.key, error.value.received) == ("task.train_data.input_path", pattern)
    assert error.value.reason.startswith(f"cannot be read: cannot search {pattern}: ")


@pytest.mark.stores("s3")
def test_an_interrupted_download_is_retried(place, tmp_path):
    url = place.url("data")
    np.savez(tmp_path / "data.npz", x=np.arange(5000))
    Store(url).put("data.npz", tmp_path / "data.npz")
    place.network.trouble, place.network.trouble_left = "reset", 2
    [path] = local_files(f"{url}/data.npz").values()
    assert np.load(path)["x"].sum() == np.arange(5000).sum()


@pytest.mark.stores("gs")
def test_record_files_are_read_from_a_store(place, tmp_path):
    url = place.url("data")
    for number in range(2):
        Store(url).put_bytes(f"train-{number}.tfrec", b"r" * 10)
    files = find_files(f"{url}/train-*.tfrec", "task.train_data.input_path")
    assert [file.rpartition("/")[2] for file in files] == ["train-0.tfrec", "train-1.tfrec"]
    assert all(file.startswith(str(tmp_path)) for file in files)
    with raises_problem(key="task.train_data.input_path", received=f"{url}/none-*", reason="no file matches"):
        find_files(f"{url}/none-*", "task.train_data.input_path")
    Store(url).put_bytes("empty.tfrec", b"")
    with raises_problem(key="task.train_data.input_path", received=f"{url}/empty.tfrec", reason="is empty"):
        find_files(f"{url}/empty.tfrec", "task.train_data.input_path")


@pytest.mark.stores("file")
def test_a_file_that_was_not_verified_is_fetched_again(place, monkeypatch):
    """The process ends between the last byte and the verification; the next one fetches the file again."""
    url = place.url("data")
    Store(url).put_bytes("data.bin", b"right" * 100)
    get = Store.get

    def damaging(store, name, target, *args):
        get(store, name, target, *args)
        target.write_bytes(b"wrong" * 100)

    def ends(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "get", damaging)
        patch.setattr("everstep.checkpoint.remote.files.fingerprint", ends)
        with pytest.raises(KeyboardInterrupt):
            local_files(f"{url}/data.bin")
    [path] = local_files(f"{url}/data.bin").values()
    assert Path(path).read_bytes() == b"right" * 100
    assert [entry.name for entry in Path(path).parent.iterdir() if entry.name != ".lock"] == ["data.bin"]


@pytest.mark.stores("gs")
def test_a_file_that_arrives_with_other_content_is_refused_and_not_kept(place, monkeypatch, tmp_path):
    url = place.url("data")
    Store(url).put_bytes("data.bin", b"right" * 100)
    get = Store.get

    def damaging(store, name, target, *args):
        get(store, name, target, *args)
        target.write_bytes(b"wrong" * 100)

    monkeypatch.setattr(Store, "get", damaging)
    with raises_problem(key="input_path", received=f"{url}/data.bin", reason="did not arrive as the store has it"):
        local_files(f"{url}/data.bin")
    assert not list((tmp_path / "cache").rglob("*data.bin"))
