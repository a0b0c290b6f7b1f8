"""`everstep catalog`: what a project's data is, and whether it is there."""

import json

import pytest
import typer

from everstep.projects.commands import catalog as command
from everstep.testing.problems import raises_problem


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "demo"
    (root / "config" / "local").mkdir(parents=True)
    (root / "pyproject.toml").write_text('[project]\nname = "demo"\n')
    (root / "config" / "parameters.yaml").write_text("{}\n")
    (root / "config" / "catalog.yaml").write_text(
        "notes: data/notes.txt\nlog: {filepath: data/log.txt, versioned: true}\nfar: data/far.npz\n"
    )
    (root / "config" / "local" / "catalog.yaml").write_text("far: data/near.npz\n")
    (root / "data").mkdir()
    (root / "data" / "notes.txt").write_text("hello")
    return root


@pytest.fixture
def run(project, monkeypatch, capsys):
    """Runs the command; a UsageError is for the program to print."""
    monkeypatch.chdir(project / "data")
    group = typer.main.get_command(command.app)

    def call(*words: str) -> str:
        group.main(list(words), standalone_mode=False)
        return capsys.readouterr().out

    return call


def test_list(run):
    lines = run("list").splitlines()
    assert [line.split() for line in lines] == [
        ["NAME", "TYPE", "DATA", "FILEPATH"],
        ["notes", "text", "there", "data/notes.txt"],
        ["log", "text", "missing", "data/log.txt"],
        ["far", "npz", "missing", "data/near.npz"],
    ]
    assert json.loads(run("list", "--json"))["log"] == {"type": "text", "filepath": "data/log.txt", "versioned": True}


def test_show(run, project):
    shown = json.loads(run("show", "notes", "--json"))
    assert shown["path"] == "data/notes.txt"
    assert shown["bytes"] == 5
    assert shown["written in"] == f"{project}/config/catalog.yaml:1"
    assert "sha256" not in run("show", "far")


def test_check(run, project):
    assert run("check", "notes") == "found notes\n"
    with raises_problem(key="far", reason=f"there is no file or folder {project}/data/near.npz"):
        run("check")
    with raises_problem(
        key="name", received="note", reason="the catalog has no such name", remedy="did you mean 'notes'?"
    ):
        run("check", "note")


def test_a_project_without_a_catalog(run, project):
    (project / "config" / "catalog.yaml").unlink()
    (project / "config" / "local" / "catalog.yaml").unlink()
    with raises_problem(key="catalog", reason="does not exist", remedy="create it") as error:
        run("list")
    assert (error.value.key, error.value.received) == ("catalog", f"{project}/config/catalog.yaml")
