"""Versions: each save makes one, the newest is loaded, none is ever half there or overwritten."""

import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from everstep.projects.catalog import places
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

VERSIONED = "log: {type: text, filepath: data/log.txt, versioned: true}\n"


def test_each_save_makes_a_version(project):
    catalog = project.catalog(VERSIONED)
    paths = [catalog.save("log", f"take {number}") for number in range(3)]
    known = catalog.versions("log")
    assert paths == [f"{project.root}/data/log.txt/{version}/log.txt" for version in known]
    assert catalog.load("log") == "take 2"
    assert [catalog.load("log", version) for version in known] == ["take 0", "take 1", "take 2"]
    assert catalog.fingerprint("log")["version"] == known[-1]
    assert catalog.fingerprint("log")["path"] == f"data/log.txt/{known[-1]}/log.txt"
    assert catalog.fingerprint("log", known[0])["sha256"] != catalog.fingerprint("log")["sha256"]


def test_numbers_go_on_as_numbers(project):
    catalog = project.catalog(VERSIONED)
    catalog.save("log", "nine", version=9)
    catalog.save("log", "ten")
    assert catalog.versions("log") == ["9", "10"]
    assert catalog.load("log") == "ten"
    assert catalog.load("log", 9) == "nine"


def test_a_version_is_never_overwritten(project):
    catalog = project.catalog(VERSIONED)
    catalog.save("log", "first", version="v1")
    with raises_problem(key="log.version", received="v1", reason="already exists"):
        catalog.save("log", "second", version="v1")
    assert catalog.load("log", "v1") == "first"
    assert project.drafts() == []


@pytest.mark.parametrize("version", ["../x", "a/b", "", ".hidden", "a b"])
def test_versions_stay_in_their_folder(project, version):
    catalog = project.catalog(VERSIONED)
    with raises_problem(key="version", received=version):
        catalog.save("log", "x", version=version)
    catalog.save("log", "x", version="1")
    with raises_problem(key="version", received=version):
        catalog.load("log", version)


def test_unknown_versions_and_entries_without(project):
    catalog = project.catalog(VERSIONED + "plain: a.txt\n")
    catalog.save("log", "x", version="12")
    catalog.save("plain", "x")
    with raises_problem(
        key="log", reason=f"there is no version '13' in {project.root}/data/log.txt", remedy="known: '12'"
    ):
        catalog.load("log", 13)
    for call in (lambda: catalog.load("plain", 1), lambda: catalog.save("plain", "y", version=1)):
        with raises_problem(key="plain", reason="has no versions", remedy="set versioned: true"):
            call()
    assert catalog.load("plain") == "x"


def test_a_file_in_the_way(project):
    catalog = project.catalog(VERSIONED)
    (project.root / "data").mkdir()
    (project.root / "data" / "log.txt").write_text("from before versions")
    with raises_problem(key="log", reason="is a file", remedy="choose a directory") as error:
        catalog.save("log", "x")
    assert error.value.received == str(project.root / "data" / "log.txt")
    assert (project.root / "data" / "log.txt").read_text() == "from before versions"


def test_what_is_no_version_does_not_count(project):
    catalog = project.catalog(VERSIONED)
    catalog.save("log", "whole", version=1)
    (project.root / "data" / "log.txt" / "2").mkdir()  # made by hand, with nothing in it
    (project.root / "data" / "log.txt" / "notes").write_text("mine")
    assert catalog.versions("log") == ["1"]
    assert catalog.load("log") == "whole"


def test_newest_and_following():
    assert places.ordered(["10", "9", "2026-01-01T00.00.00.000Z", "2025-01-01T00.00.00.000Z"]) == [
        "9",
        "10",
        "2025-01-01T00.00.00.000Z",
        "2026-01-01T00.00.00.000Z",
    ]
    assert places.following(["9", "10"]) == "11"
    assert places.newest([]) is None
    first = places.following([])
    assert places.newest([first, places.following([first])]) != first


def test_a_failing_save_leaves_all_as_it_was(project):
    catalog = project.catalog("a: data/a.npz\nb: {filepath: data/b.npz, versioned: true}\n")
    for name in "ab":
        catalog.save(name, {"x": np.arange(3)})
        with raises_problem(key=name, reason=f"data/{name}.npz cannot be written as npz: 'y' is an array of"):
            catalog.save(name, {"x": np.ones(3), "y": np.array([object()])})
        assert catalog.load(name)["x"].tolist() == [0, 1, 2]
    assert len(catalog.versions("b")) == 1
    assert project.drafts() == []


WRITER = """
    import sys
    from everstep.catalog import Catalog
    catalog = Catalog.from_files([sys.argv[1] + "/config/catalog.yaml"], sys.argv[1])
    print("ready", flush=True)
    for number in range(int(sys.argv[2])):
        catalog.save("log", sys.argv[3] * 200_000)
"""


def writer(project, count: int, letter: str) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(project.root), str(count), letter]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_save_at_once_lose_nothing(project):
    catalog = project.catalog(VERSIONED)
    catalog.save("log", "start", version=1)
    processes = [writer(project, 20, letter) for letter in "ab"]
    for process in processes:
        process.communicate(timeout=300)
        assert process.returncode == 0
    assert catalog.versions("log") == [str(number) for number in range(1, 42)]
    letters = [catalog.load("log", version)[0] for version in catalog.versions("log")[1:]]
    assert sorted(letters) == ["a"] * 20 + ["b"] * 20


def test_a_killed_writer_leaves_only_whole_versions(project):
    catalog = project.catalog(VERSIONED)
    process = writer(project, 2000, "k")
    try:
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while len(catalog.versions("log")) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.poll() is None, "it was done before it was killed"
    finally:
        process.kill()
        process.communicate()
    assert len(catalog.versions("log")) >= 3
    assert {len(catalog.load("log", version)) for version in catalog.versions("log")} == {200_000}
    catalog.save("log", "after")
    assert catalog.load("log") == "after"
