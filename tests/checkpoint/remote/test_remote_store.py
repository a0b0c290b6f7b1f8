"""Single objects on every kind of store: downloads equal uploads, also on a bad network."""

import os

import pytest

from everstep.checkpoint.remote.store import Absent, Altered, Store, StoreError, fingerprint

pytestmark = pytest.mark.slow


@pytest.fixture
def blob(tmp_path):
    path = tmp_path / "blob"
    path.write_bytes(os.urandom(200_000))
    return path


def test_a_download_equals_the_upload(place, blob, tmp_path):
    store = Store(place.url())
    assert store.listing() == {}
    uploaded = store.put("a/b/data.bin", blob)
    store.put_bytes("a/note", b"short")
    store.put_bytes("a/empty", b"")
    assert sorted(store.listing()) == ["a/b/data.bin", "a/empty", "a/note"]
    store.get("a/b/data.bin", tmp_path / "back", [uploaded.entry])
    assert (tmp_path / "back").read_bytes() == blob.read_bytes()
    assert (store.get_bytes("a/note"), store.get_bytes("a/empty")) == (b"short", b"")


def test_objects_are_replaced_copied_found_and_removed(place):
    store = Store(place.url())
    store.put_bytes("x/1", b"old")
    store.put_bytes("x/1", b"new")
    store.copy("x/1", "x/2")
    assert list(store.matching("x/*")) == ["x/1", "x/2"]
    store.delete(["x/1", "x/never"])
    assert list(store.listing()) == ["x/2"]
    assert store.get_bytes("x/2") == b"new"
    with pytest.raises(Absent, match=r"there is no \S+x/1$"):
        store.get_bytes("x/1")


def test_an_altered_object_is_refused(place, blob, tmp_path):
    store = Store(place.url())
    uploaded = store.put("data", blob)
    changed = bytearray(blob.read_bytes())
    changed[1234] ^= 1
    store.put_bytes("data", bytes(changed))
    with pytest.raises(Altered, match="data is not as it was uploaded"):
        store.get("data", tmp_path / "back", [uploaded.entry])
    assert not (tmp_path / "back").exists()


@pytest.mark.stores("s3", "gs")
def test_an_upload_is_retried_on_a_bad_network(place, blob, tmp_path):
    store = Store(place.url())
    for trouble in ("truncate", "error", "reset", "garble"):
        place.network.trouble, place.network.trouble_left, place.network.met = trouble, 1, 0
        uploaded = store.put(trouble, blob)
        assert place.network.met == 1, trouble
        store.get(trouble, tmp_path / trouble, [uploaded.entry])


@pytest.mark.stores("s3", "gs")
def test_a_failed_upload_keeps_the_existing_object(place, blob):
    """Every upload is truncated, until the client gives up."""
    store = Store(place.url())
    store.put_bytes("index", b"old" * 100)
    place.network.trouble, place.network.met = "truncate", 0
    with pytest.raises(StoreError, match="arrived with|cannot upload"):
        store.put_whole("index", blob)
    assert place.network.met >= 4
    place.network.trouble = ""
    assert store.get_bytes("index") == b"old" * 100
    store.put_whole("index", blob)
    assert (store.get_bytes("index"), list(store.listing())) == (blob.read_bytes(), ["index"])


@pytest.mark.stores("s3", "gs")
def test_a_store_that_never_answers_runs_into_the_time_limit(place, blob, monkeypatch):
    monkeypatch.setenv("EVERSTEP_STORE_TIMEOUT", "0.3")
    store = Store(place.url())
    place.network.trouble, place.network.trouble_left = "stall", 1
    store.put("late", blob)
    place.network.trouble_left = 1 << 30
    with pytest.raises(StoreError, match="cannot download .*: no answer in time") as error:
        store.get_bytes("late")
    assert not error.value.permanent


@pytest.mark.stores("s3", "gs")
def test_a_missing_bucket_is_not_retried(place, blob):
    place.network.requests = 0
    with pytest.raises(StoreError, match="no such bucket") as error:
        Store(f"{place.scheme}://there-is-no-such-bucket/x").put("a", blob)
    assert error.value.permanent
    assert place.network.requests <= 2


def test_large_files_have_the_etag_of_a_multipart_upload(tmp_path, monkeypatch):
    monkeypatch.setattr("everstep.checkpoint.remote.store.PART", 1000)
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 10)
    assert fingerprint(path).etag.endswith("-3")
    monkeypatch.setattr("everstep.checkpoint.remote.store.PART", 2000)
    assert "-" not in fingerprint(path).etag
