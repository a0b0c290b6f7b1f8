"""Fingerprints: the same content always has the same one, and a changed byte another."""

import hashlib
import os
import time

import numpy as np
import pytest
from tests.projects.catalog.catalog_project import Project

from everstep.projects.catalog import fingerprints


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The files whose bytes were read."""
    names = []
    whole = fingerprints.sha256
    monkeypatch.setattr(fingerprints, "sha256", lambda path: names.append(path.name) or whole(path))
    return names


def age(path, seconds: float = 100) -> None:
    """Makes a file look old; its change time is now all the same, so the test waits for that."""
    os.utime(path, (time.time() - seconds,) * 2)


def test_of_a_file_it_is_the_digest_of_its_bytes(project):
    catalog = project.catalog("a: data/a.txt\n")
    catalog.save("a", "hello")
    expected = hashlib.sha256(b"hello").hexdigest()
    assert catalog.fingerprint("a") == {"sha256": expected, "bytes": 5, "path": "data/a.txt"}


def test_outside_the_project_the_path_is_absolute(project, tmp_path):
    catalog = project.catalog(f"a: {tmp_path}/a.txt\n")
    catalog.save("a", "hello")
    assert catalog.fingerprint("a")["path"] == f"{tmp_path}/a.txt"


def test_the_same_arrays_have_the_same_fingerprint(project, tmp_path):
    catalog = project.catalog("a: a.npz\nb: b.npz\n")
    for name in "ab":
        catalog.save(name, {"x": np.arange(100), "y": np.ones(3)})
        time.sleep(0.01)
    assert catalog.fingerprint("a")["sha256"] == catalog.fingerprint("b")["sha256"]


def folder(project, files: dict[str, bytes]):
    for name, data in files.items():
        path = project.root / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return project.catalog("a: data\n")


def test_of_a_folder_names_and_contents_count(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    same = {"x/1.bin": b"one", "2.bin": b"two"}
    cases = [
        same,
        dict(reversed(same.items())),
        {**same, "x/.everstep-0123-draft": b"left by a killed process"},
        {"x/1.bin": b"one", "3.bin": b"two"},
        {"x/1.bin": b"ona", "2.bin": b"two"},
        {"x/1.bin": b"onet", "2.bin": b"wo"},
        {**same, "4.bin": b""},
    ]
    catalogs = [folder(Project(tmp_path / str(number)), files) for number, files in enumerate(cases)]
    digests = [catalog.fingerprint("a")["sha256"] for catalog in catalogs]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[2:])) == 5
    assert catalogs[0].fingerprint("a")["bytes"] == 6


def test_content_is_read_again_only_when_it_may_have_changed(project, read, monkeypatch):
    catalog = folder(project, {"1.bin": b"one", "2.bin": b"two"})
    before = catalog.fingerprint("a")
    assert read == ["1.bin", "2.bin"]
    assert catalog.fingerprint("a") == before
    assert len(read) == 4, "what changed within seconds is read again: its times may not tell"
    monkeypatch.setattr(fingerprints, "_SETTLED", 0.0)
    catalog.fingerprint("a")
    del read[:]
    assert catalog.fingerprint("a") == before
    assert read == []
    (project.root / "data" / "2.bin").write_bytes(b"twO")
    assert catalog.fingerprint("a")["sha256"] != before["sha256"]
    assert read == ["2.bin"]


def test_a_change_that_hides_its_time_is_seen(project, read, monkeypatch):
    monkeypatch.setattr(fingerprints, "_SETTLED", 0.0)
    catalog = project.catalog("a: a.txt\n")
    catalog.save("a", "hello")
    path = catalog.path("a")
    age(path)
    before = catalog.fingerprint("a")
    status = path.stat()
    path.write_text("hellO")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert catalog.fingerprint("a")["sha256"] != before["sha256"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"": 3}', '{"": ["x"]}'])
def test_a_damaged_cache_is_not_trusted(project, tmp_path, monkeypatch, damage):
    monkeypatch.setattr(fingerprints, "_SETTLED", 0.0)
    catalog = project.catalog("a: a.txt\n")
    catalog.save("a", "hello")
    before = catalog.fingerprint("a")
    [kept] = (tmp_path / "cache" / "fingerprints").iterdir()
    kept.write_text(damage)
    assert catalog.fingerprint("a") == before


def test_without_a_cache(project, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    catalog = project.catalog("a: a.txt\n")
    catalog.save("a", "hello")
    assert catalog.fingerprint("a")["bytes"] == 5
