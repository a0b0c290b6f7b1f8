"""What a run computes on and with, and which files it reads."""

import importlib.metadata

import pytest

from everstep.run import environments as environment


def test_every_package_that_python_knows_is_listed():
    found = environment.installed_packages()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and name.lower() in ("numpy", "keras", "pytest", "typing_extensions"):
            assert found[name.lower().replace("_", "-")] == importlib.metadata.version(name)


def test_settings_are_those_of_the_record(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--here")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment.settings()["XLA_FLAGS"] == "--here"
    found = environment.with_settings(
        {"HOME": "h", "XLA_FLAGS": "--here", "OMP_NUM_THREADS": "3"}, {"XLA_FLAGS": "--x"}
    )
    assert found == {"HOME": "h", "XLA_FLAGS": "--x"}
    assert environment.with_settings({}, {"LD_PRELOAD": "evil.so"}) == {}


def test_the_models_of_processors(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9000: fast\n")
    (tmp_path / "gpus" / "0").mkdir(parents=True)
    (tmp_path / "gpus" / "0" / "information").write_text("Model: \t\t NVIDIA H200\nIRQ: 1\n")
    monkeypatch.setattr(environment, "_PROCESSORS", tmp_path / "cpuinfo")
    monkeypatch.setattr(environment, "_GPUS", tmp_path / "gpus")
    assert environment.processor() == "Abacus 9000: fast"
    assert environment.gpus() == ["NVIDIA H200"]


@pytest.fixture
def files(tmp_path):
    for folder, name in (("a", "1.tfrec"), ("b", "1.tfrec"), ("b", "2.tfrec")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(bytes(300_000))
    return tmp_path


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_every_byte_of_small_files_counts(files):
    names = sorted(map(str, files.rglob("*.tfrec")))
    before = environment.file_fingerprints(names)
    assert list(before) == ["1.tfrec", "1.tfrec'", "2.tfrec"]
    flip(files / "b" / "1.tfrec", 123_456)
    after = environment.file_fingerprints(names)
    assert [name for name in before if before[name] != after[name]] == ["1.tfrec'"]


def test_of_large_ones_places_count_and_of_too_many_the_size(files, monkeypatch):
    monkeypatch.setattr(environment, "MAX_DATA_BYTES", 400_000)
    monkeypatch.setattr(environment, "MAX_SAMPLED_FILES", 1)
    names = sorted(map(str, files.rglob("*.tfrec")))
    before = environment.file_fingerprints(names)
    assert [sorted(content) for content in before.values()] == [["bytes", "sha256"], ["bytes", "sampled"], ["bytes"]]
    flip(files / "b" / "1.tfrec", -1)
    flip(files / "b" / "2.tfrec", -1)
    after = environment.file_fingerprints(names)
    assert [name for name in before if before[name] != after[name]] == ["1.tfrec'"]


def test_a_folder_file_by_file_or_as_one(files, monkeypatch):
    assert set(environment.folder_fingerprint(files)) == {"a/1.tfrec", "b/1.tfrec", "b/2.tfrec"}
    monkeypatch.setattr(environment, "MAX_NAMED_FILES", 2)
    before = environment.folder_fingerprint(files)
    assert (before["files"], before["bytes"], len(before["sha256"])) == (3, 900_000, 64)
    flip(files / "a" / "1.tfrec", 150_000)
    assert environment.folder_fingerprint(files)["sha256"] != before["sha256"]
    assert environment.folder_fingerprint(files / "nowhere") == {}
