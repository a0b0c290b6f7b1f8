"""Private names of classes that users subclass: harmless, or refused."""

import pytest

from everstep import CompiledTask, Controller, Task, Trainer
from everstep.components import GenericTrainer, KerasTrainer
from everstep.evaluation import SampleMetric
from everstep.flow import FlowTask
from everstep.private_names import _private_names
from everstep.testing.problems import raises_problem
from everstep.training import Training

ABSTRACT = "_abc_impl"


@pytest.mark.parametrize("cls", [FlowTask, Training, KerasTrainer, GenericTrainer, SampleMetric])
def test_a_user_hits_none_by_chance(cls):
    """They have two underscores, or say whose they are."""
    own = {name for name in _private_names(cls) if not name.startswith("_everstep_")}
    assert own <= {ABSTRACT}


@pytest.mark.parametrize(
    ("cls", "name"), [(Task, "_logging_dir"), (CompiledTask, "_model"), (Trainer, "_feed"), (Controller, "_save")]
)
def test_others_are_refused_when_the_class_is_made(cls, name):
    with raises_problem(key=f"Mine.{name}", reason=f"is a name that {cls.__name__} uses itself", remedy=f"my{name}"):
        type("Mine", (cls,), {name: lambda self: 3})


def test_any_other_private_name_is_the_users():
    made = type("Mine", (CompiledTask,), {"_inputs": 3, "__doc__": "Mine.", "build_inputs": None})
    assert made._inputs == 3
