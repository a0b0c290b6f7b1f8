"""A project's classes: found in the project alone, and kept apart from those of other projects."""

import sys
import types

import pytest
from components_project import write_run, write_source

from everstep.components import BaseClass, Orchestrator
from everstep.projects.components.project import Project
from everstep.testing.problems import raises_problem

CLASS = "from everstep.components import BaseClass\nclass Net(BaseClass):\n    name = {name!r}\n"


def project(root, **modules):
    (root / "src").mkdir(parents=True)
    for name, text in modules.items():
        (root / "src" / f"{name}.py").write_text(text)
    return Project(root, "src")


def test_two_projects_with_modules_of_one_name(tmp_path):
    late = CLASS + "    @staticmethod\n    def late():\n        import dataset\n        return dataset.WHO\n"
    one, two = (
        project(tmp_path / who, models=late.format(name=who), dataset=f"WHO = {who!r}\n") for who in ("one", "two")
    )
    with one.active():
        first = one.find_class("models.Net", (BaseClass,), "key")
    with two.active():
        second = two.find_class("models.Net", (BaseClass,), "key")
        assert second.late() == "two"
    with one.active():
        assert first.late() == "one"
        assert one.find_class("models.Net", (BaseClass,), "key") is first
    assert (first.name, second.name) == ("one", "two")
    assert not {"models", "dataset"} & set(sys.modules)
    assert str(one.source) not in sys.path


def test_what_is_installed_neither_shadows_nor_is_lost(tmp_path, monkeypatch):
    installed = types.ModuleType("models")
    monkeypatch.setitem(sys.modules, "models", installed)
    own = project(tmp_path, models=CLASS.format(name="own"))
    with own.active():
        assert own.find_class("models.Net", (BaseClass,), "key").name == "own"
    assert sys.modules["models"] is installed


def test_packages_inside_a_project(tmp_path):
    own = project(tmp_path)
    (tmp_path / "src" / "parts" / "nets").mkdir(parents=True)
    (tmp_path / "src" / "parts" / "__init__.py").touch()
    (tmp_path / "src" / "parts" / "nets" / "__init__.py").write_text(CLASS.format(name="deep"))
    with own.active():
        assert own.find_class("parts.nets.Net", (BaseClass,), "key").name == "deep"
    assert not [name for name in sys.modules if name.startswith("parts")]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("os.system", {"received": "os.system", "reason": "no module 'os'", "remedy": "Python's own"}),
        (
            "numpy.ndarray",
            {"received": "numpy.ndarray", "reason": "no module 'numpy'", "remedy": "only classes of the project"},
        ),
        ("model.Net", {"received": "model.Net", "reason": "no module 'model'", "remedy": "did you mean 'models'"}),
        (
            "models.Nets",
            {"received": "models.Nets", "reason": "the module 'models' has no 'Nets'", "remedy": "did you mean 'Net'"},
        ),
        (
            "models.os.PathLike",
            {
                "received": "models.os.PathLike",
                "reason": "must be a class derived from BaseClass, but is the class PathLike",
            },
        ),
        ("models.number", {"received": "models.number", "reason": "an object of the class int"}),
        ("broken.Net", {"reason": "importing 'broken' failed at .*broken.py:2: ZeroDivisionError: division by zero"}),
        ("syntax.Net", {"reason": "importing 'syntax' failed at .*syntax.py:1: SyntaxError"}),
        ("needs.Net", {"reason": "ModuleNotFoundError: No module named 'not_there'"}),
        ("older.Net", {"remedy": "change the import: its names are in everstep.components"}),
        (
            "everstep.errors.UsageError",
            {"received": "everstep.errors.UsageError", "reason": "must be a class derived from BaseClass"},
        ),
    ],
)
def test_names_that_are_refused(tmp_path, name, fields):
    own = project(
        tmp_path,
        models="import os\nnumber = 3\n" + CLASS.format(name="own"),
        broken="a = 1\nb = a / 0\n",
        syntax="class Net(:\n",
        needs="import not_there\n",
        older="from abstractions import ModelBuilderBase\n",
    )
    place = {"key": "model_builder_class", "origin": "config.yaml:3"}
    with own.active(), raises_problem(**place, **fields) as refused:
        own.find_class(name, (BaseClass,), "model_builder_class", "config.yaml:3")
    assert "\n" not in str(refused.value)


def test_the_source_folder_is_in_the_project(tmp_path):
    for source, reason in (("code", "there is no folder"), ("..", "must be inside the project")):
        with raises_problem(key="src_code_path", received=source, reason=reason, origin="config.yaml:3"):
            Project(tmp_path, source, "config.yaml:3")


def test_a_run_is_named_by_its_folder(tmp_path):
    write_source(tmp_path)
    write_run(tmp_path, "first")
    for name in ("", "../first", "a/b", ".hidden"):
        with raises_problem(key="run_name", received=name):
            Orchestrator(name, tmp_path)
    nowhere = tmp_path / "nowhere"
    with raises_problem(key="data_dir", received=str(nowhere), origin="the argument data_dir"):
        Orchestrator("first", tmp_path, nowhere)
    assert Orchestrator("first", tmp_path, tmp_path).config.data_dir == str(tmp_path.resolve())
