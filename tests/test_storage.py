"""Atomic writes, strict JSON, and directories that can or cannot be written to."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from everstep import storage
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


def test_write_replaces_the_whole_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    storage.write_text(path, "first, and longer")
    storage.write_text(path, "sécond")
    assert path.read_text("utf-8") == "sécond"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_several_files_are_written_or_none_is_left_half(tmp_path):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    storage.write_files(dict.fromkeys(paths, b"first, and longer"))
    storage.write_files({paths[0]: b"second", paths[1]: b"third"})
    assert [path.read_bytes() for path in paths] == [b"second", b"third"]
    with pytest.raises(TypeError):
        storage.write_files({paths[0]: b"fourth", paths[1]: None})
    assert [path.read_bytes() for path in paths] == [b"second", b"third"]
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]


def test_several_files_are_durable_before_one_has_its_name(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(storage.os, "fsync", lambda _: events.append("sync"))
    replace = os.replace
    monkeypatch.setattr(storage.os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    storage.write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert events == ["sync", "sync", "rename", "rename", "sync"]


def test_a_failed_write_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.json"
    storage.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        storage.write_json(path, {"a": object()})
    with pytest.raises(FileNotFoundError), storage.atomic_path(path):
        (tmp_path / "missing").read_bytes()
    assert storage.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_written_files_have_ordinary_permissions(tmp_path):
    storage.write_bytes(tmp_path / "a", b"")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_json_is_strict_and_accepts_numpy(tmp_path):
    path = tmp_path / "a.json"
    value = {
        "a": np.float32(0.5),
        "b": np.arange(2),
        "c": (float("nan"), float("-inf")),
        "d": tmp_path,
        1: None,
    }
    storage.write_json(path, value)

    def refuse(name):
        raise AssertionError(name)

    read = json.loads(path.read_text(), parse_constant=refuse)
    assert read == {"a": 0.5, "b": [0, 1], "c": ["NaN", "-Infinity"], "d": str(tmp_path), "1": None}


def test_read_json_reports_missing_and_broken_files(tmp_path):
    with raises_problem(key=str(tmp_path / "missing.json"), reason="cannot be read: No such file"):
        storage.read_json(tmp_path / "missing.json")
    (tmp_path / "broken.json").write_text('{"a": ')
    with raises_problem(key=str(tmp_path / "broken.json"), reason="is not valid JSON"):
        storage.read_json(tmp_path / "broken.json")


def test_prepare_directory_reports_whether_it_is_new(tmp_path):
    assert storage.prepare_directory(tmp_path / "a" / "b")
    assert not storage.prepare_directory(tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_file_in_the_way_is_named(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as error:
        storage.prepare_directory(tmp_path / "file" / below)
    assert error.value.received == str(tmp_path / "file")
    assert (error.value.reason, error.value.remedy) == ("is a file", "choose a directory")


def test_an_unwritable_directory_is_named_even_to_root():
    with raises_problem(received="/proc/nowhere", reason="cannot be written to", remedy="you may write to"):
        storage.prepare_directory("/proc/nowhere")


def test_remove_directory_accepts_a_missing_one(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    storage.remove_directory(tmp_path / "a")
    storage.remove_directory(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_atomic_path_replaces_a_directory(tmp_path):
    for content in ("old", "new"):
        with storage.atomic_path(tmp_path / "model") as temporary:
            assert storage.is_temporary(temporary)
            temporary.mkdir()
            (temporary / content).touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "new"]


def test_low_layers_import_no_framework():
    modules = ["storage", "tracking.tracker", "tracking.history", "tracking.tensorboard", "tracking.console"]
    modules += ["run.record", "checkpoint.digests", "run.environments", "checkpoint.checkpointer", "checkpoint.orbax"]
    imports = "; ".join(f"import everstep.{module}" for module in modules)
    code = f"{imports}; import sys; print(*{{'keras', 'tensorflow', 'rich'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_a_file_that_cannot_be_synced_is_an_error(tmp_path):
    (tmp_path / "file").write_text("x")
    storage.sync([tmp_path, tmp_path / "file"])
    with pytest.raises(FileNotFoundError):
        storage.sync([tmp_path / "file", tmp_path / "missing"])
