"""A catalog whose data is in a store: files, folders, versions, fingerprints."""

import concurrent.futures

import numpy as np
import pytest

from everstep.catalog import Catalog
from everstep.checkpoint.remote.store import Store
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))


def catalog_of(tmp_path, text: str) -> Catalog:
    (tmp_path / "catalog.yaml").write_text(text)
    return Catalog.from_files([tmp_path / "catalog.yaml"], tmp_path)


def test_a_file_is_saved_loaded_and_replaced(place, tmp_path):
    url = place.url("data")
    catalog = catalog_of(tmp_path, f"far: {url}/x.npz\nnear: x.npz\n")
    assert not catalog.exists("far")
    with raises_problem(key="far", reason=f"there is no file or folder {url}/x.npz"):
        catalog.load("far")
    for size in (3, 5):
        for name in ("far", "near"):
            catalog.save(name, {"x": np.arange(size)})
        assert catalog.load("far")["x"].tolist() == list(range(size))
        far, near = catalog.fingerprint("far"), catalog.fingerprint("near")
        assert (far["sha256"], far["bytes"]) == (near["sha256"], near["bytes"])
        assert far["path"] == f"{url}/x.npz"
    catalog.check(["far"])


def test_a_folder_keeps_its_file_names(place, tmp_path):
    url = place.url("data")
    catalog = catalog_of(
        tmp_path, f"far: {{type: images, filepath: {url}/cats}}\nnear: {{type: images, filepath: c}}\n"
    )
    value = {"image": np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4, 1), "label": np.array(["a", "b"])}
    for name in ("far", "near"):
        catalog.save(name, value)
    got = catalog.load("far")
    assert (got["image"] == value["image"]).all()
    assert got["label"].tolist() == ["a", "b"]
    assert catalog.exists("far")
    assert catalog.fingerprint("far")["sha256"] == catalog.fingerprint("near")["sha256"]


def test_versions_are_listed_and_never_overwritten(place, tmp_path):
    url = place.url("data")
    catalog = catalog_of(tmp_path, f"far: {{filepath: {url}/log.txt, versioned: true}}\n")
    assert catalog.versions("far") == []
    catalog.save("far", "one", version=1)
    assert catalog.save("far", "two") == f"{url}/log.txt/2/log.txt"
    assert catalog.versions("far") == ["1", "2"]
    assert (catalog.load("far"), catalog.load("far", 1)) == ("two", "one")
    with raises_problem(key="far.version", received="1", reason="already exists in"):
        catalog.save("far", "other", version=1)
    with raises_problem(key="far", reason=f"there is no version '7' in {url}/log.txt"):
        catalog.load("far", 7)
    assert catalog.load("far", 1) == "one"


@pytest.mark.stores("file", "memory", "s3")  # Google's emulator has no conditional writes
def test_concurrent_saves_lose_nothing(place, tmp_path):
    catalog = catalog_of(tmp_path, f"far: {{filepath: {place.url('data')}/log.txt, versioned: true}}\n")
    catalog.save("far", "start", version=1)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: catalog.save("far", f"take {number}"), range(8)))
    assert catalog.versions("far") == [str(number) for number in range(1, 10)]
    takes = sorted(catalog.load("far", version) for version in range(2, 10))
    assert takes == [f"take {number}" for number in range(8)]


@pytest.mark.stores("file", "s3")
def test_a_partly_uploaded_folder_is_no_version(place, tmp_path):
    url = place.url("data")
    catalog = catalog_of(tmp_path, f"far: {{type: images, filepath: {url}/cats, versioned: true}}\n")
    catalog.save("far", {"image": np.zeros((1, 2, 2, 1), np.uint8), "label": np.array([1])}, version=1)
    Store(f"{url}/cats").put_bytes("2/cats/images/00000.png", b"the first of many")
    assert catalog.versions("far") == ["1"]
    assert catalog.load("far")["label"].tolist() == [1]
    assert catalog.save("far", catalog.load("far")).endswith("/cats/3/cats")


@pytest.mark.stores("s3")
def test_an_unreachable_store_is_reported_with_the_key(place, tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_STORE_TIMEOUT", "0.5")
    url = f"{place.url('data')}/x.txt"
    catalog = catalog_of(tmp_path, f"far: {url}\n")
    place.network.fault = "refuse"
    with raises_problem(key="far.filepath", received=url, reason="cannot be read"):
        catalog.load("far")
    with raises_problem(key="far.filepath", received=url, reason="cannot be used"):
        catalog.check(["far"])
