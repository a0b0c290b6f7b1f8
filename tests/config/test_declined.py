"""Keys of other libraries: harmless values are skipped, others are refused with the reason."""

import dataclasses

import pytest

from everstep.config import Config
from everstep.config.base import Declined
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem


@dataclasses.dataclass
class Base(Config):
    """Declines two keys."""

    _declined = {
        "packs": Declined("gradients are summed in one piece", 1),
        "title": Declined("it is nowhere", label=True),
    }

    units: int = 3


@dataclasses.dataclass
class Derived(Base):
    """Declines one more key, and has one of those that its base declines."""

    _declined = {"hosts": Declined("a run is on one machine")}

    packs: int = 5


@dataclasses.dataclass
class Holder(Config):
    """Holds a config that declines keys."""

    part: Base = Base()


@pytest.mark.parametrize("tree", [{"packs": 1}, {"packs": None}, {"title": "any"}, {"title": None}])
def test_harmless_values_change_nothing(tree):
    for strict in (True, False):
        config = Holder()
        config.override({"part": {**tree, "units": 4}}, is_strict=strict)
        assert config.as_dict() == {"part": {"units": 4}}
    assert Base(tree) == Base()


@pytest.mark.parametrize("value", [2, 1.0, True, "1", [1]])
def test_another_value_is_refused_with_the_reason(value):
    with pytest.raises(UsageError) as error:
        Holder().override({"part": {"packs": value}})
    assert (error.value.key, error.value.received) == ("part.packs", value)
    assert (error.value.reason, error.value.remedy) == ("but gradients are summed in one piece", "remove it")
    with raises_problem(key="title", received=5, reason="but it is nowhere"):
        Base({"title": 5})


def test_assigning_one_is_refused_too():
    with raises_problem(key="packs", received=2, reason="but gradients"):
        Base().packs = 2


def test_classes_decline_what_their_bases_do_unless_they_have_it():
    config = Derived({"packs": 7, "title": "any", "hosts": None})
    assert config.as_dict() == {"units": 3, "packs": 7}
    with raises_problem(key="hosts", received=["a", "b"], reason="one machine"):
        config.override({"hosts": ["a", "b"]})
