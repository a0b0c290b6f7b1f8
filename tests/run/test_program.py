"""The program of a run: how it is recorded, and where its runs are in a trial or a repetition."""

import sys
import types

import pytest

from everstep.run import program
from everstep.run.program import Redirection, directory_of, is_repetition, program_run


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A process that has named no directory yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "_numbers", {})
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    def start(file, *arguments, spec=None):
        main = types.ModuleType("__main__")
        main.__spec__ = spec
        if file is not None:
            main.__file__ = str(file)
        monkeypatch.setitem(sys.modules, "__main__", main)
        monkeypatch.setattr(sys, "argv", [str(file), *arguments])

    return start


def redirect(monkeypatch, **fields):
    for name, value in Redirection(**fields).variables().items():
        monkeypatch.setenv(name, value)


def test_script_and_arguments_are_recorded(started, place):
    started(place / "jobs" / "train.py", "--lr", "0.1", "--name=a b")
    assert program_run("runs/mine").record() == {
        "program": {
            "script": "jobs/train.py",
            "module": None,
            "arguments": ["--lr", "0.1", "--name=a b"],
            "directory": str(place),
            "run": 1,
        }
    }


def test_a_secret_argument_is_hidden(started, place):
    started(place / "train.py", "--password", "correct-horse-battery")
    assert "correct-horse" not in str(program_run("runs/mine").record())


def test_a_module_is_recorded_by_its_name(started, place):
    started(place / "pkg" / "train" / "__main__.py", spec=types.SimpleNamespace(name="pkg.train.__main__"))
    assert program_run("runs/mine").record()["program"]["module"] == "pkg.train"


def test_a_notebook_has_no_script(started, monkeypatch):
    started(None)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # another test of this process may have loaded it
    assert program_run("runs/mine").record()["program"]["reason"] == "it was started at a Python prompt"
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert program_run("runs/mine").record()["program"] == {
        "script": None,
        "reason": "it was started in a notebook",
        "run": 1,
    }


def test_each_directory_is_a_run_of_its_own():
    numbers = [program_run(name).number for name in ("runs/a", "runs/b", "runs/a")]
    assert numbers == [1, 2, 1]
    assert not is_repetition()
    assert directory_of("runs/a") == "runs/a"


def test_the_first_run_of_a_trial_is_in_its_directory(monkeypatch):
    redirect(monkeypatch, directory="/sweep/trials/3")
    assert program_run("runs/a").directory == "/sweep/trials/3"
    assert program_run("runs/b").directory == "/sweep/trials/3-runs-b"
    assert program_run("s3://bucket/c").directory == "/sweep/trials/3-s3-bucket-c"
    assert program_run("runs/a").directory == "/sweep/trials/3"
    assert program_run("runs/a").seed is None
    assert directory_of("runs/a") == "/sweep/trials/3"
    assert directory_of("runs/other") == "runs/other"


def test_the_run_that_is_repeated_has_its_seed(monkeypatch):
    redirect(monkeypatch, directory="/again", number=2, seed=7, repeats=True)
    assert (program_run("runs/a").directory, program_run("runs/a").seed) == ("/again-runs-a", None)
    assert (program_run("runs/b").directory, program_run("runs/b").seed) == ("/again", 7)
    assert is_repetition()
