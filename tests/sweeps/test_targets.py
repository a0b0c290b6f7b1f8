"""Kinds of targets: those of sweeps, those that projects register, and one of another package."""

import dataclasses
import json
from pathlib import Path

import pytest

from everstep.run.program import VARIABLE
from everstep.sweeps.space import create_space
from everstep.sweeps.target import (
    ExperimentTarget,
    FunctionTarget,
    SweepChoice,
    Target,
    TargetRequest,
    register_target,
    target_from_dict,
    target_kinds,
)
from everstep.testing.problems import raises_problem


@pytest.fixture
def program(monkeypatch):
    """Registers a kind of targets as another package does, for one test."""
    monkeypatch.setattr("everstep.sweeps.target._kinds", {cls.kind: cls for cls in target_kinds()})

    @register_target
    class Program(Target):
        kind = "program"

        @classmethod
        def choose(cls, request):
            if request.name != "train.sh":
                return None
            return SweepChoice(cls(request.name), request.space, request.fixed, lambda values: None, [cls.metric])

        def command(self, run_dir, space, values, longer=()):
            return ["sh", self.name, str(run_dir), *space.words(values), *longer]

    return Program


def test_the_kinds_that_ship():
    assert {"experiment", "function", "script", "components", "flow"} <= {cls.kind for cls in target_kinds()}


@pytest.mark.parametrize("target", [ExperimentTarget("mnist/mlp", ("--no-export",), "."), FunctionTarget("m:f")])
def test_a_target_is_read_as_it_was_written(target):
    assert target_from_dict(target.as_dict()) == target


def test_a_kind_of_another_package(program, tmp_path):
    from everstep.sweeps.commands.sweep import choose_target

    space = create_space({"x": [1, 2]})
    chosen = choose_target(TargetRequest("train.sh", space, (), tmp_path))
    assert target_from_dict(chosen.target.as_dict()) == program("train.sh")
    run_dir = chosen.target.run_dir(tmp_path, 3)
    assert chosen.target.command(run_dir, space, {"x": 2}) == ["sh", "train.sh", str(tmp_path / "trials" / "3"), "x=2"]
    assert not chosen.target.is_complete(run_dir)
    with raises_problem(key="TARGET", received="other.sh"):
        choose_target(TargetRequest("other.sh", space, (), tmp_path))


def test_a_script_gets_values_as_options(tmp_path):
    from everstep.sweeps.commands.sweep import choose_target

    (tmp_path / "train.py").write_text("")
    space = create_space(None, ["learning-rate=0.1,1e-3", "units=8,16"])
    chosen = choose_target(TargetRequest("train.py", space, ("epochs=5",), tmp_path))
    target = dataclasses.replace(chosen.target, words=tuple(chosen.fixed))
    assert target_from_dict(target.as_dict()) == target
    command = target.command(tmp_path / "0", space, {"learning-rate": 1e-3, "units": 8}, ["epochs=9"])
    assert command[1:] == ["train.py", "--epochs=5", "--learning-rate=0.001", "--units=8", "--epochs=9"]
    assert json.loads(target.variables(Path("0"))[VARIABLE])["directory"] == str(Path.cwd() / "0")
    with raises_problem(key="TARGET", received="trian.py", remedy="did you mean 'train.py'?"):
        choose_target(TargetRequest("trian.py", space, (), tmp_path))


def test_a_kind_that_nothing_registers():
    with raises_problem(key="target", received="program"):
        target_from_dict({"kind": "program", "name": "train.sh", "words": [], "root": ""})
