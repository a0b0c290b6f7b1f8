"""Alternatives: of a group of fields at most one has a value; setting one clears the others."""

import copy
import dataclasses
import re
from typing import ClassVar

import pytest

from everstep.config import Config, Layer, apply, apply_layers, dialect, get_exp_config
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem


@dataclasses.dataclass
class Length(Config):
    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("steps", "epochs", "hours"),)

    epochs: float | None = None
    steps: int | None = 10
    hours: float | None = None
    name: str = ""


@dataclasses.dataclass
class LongLength(Length):
    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("small", "big"),)

    small: int | None = None
    big: int | None = None


@dataclasses.dataclass
class Plan(Config):
    length: Length = Length()
    lengths: list[Length] = [Length(), Length()]


def set_in(config):
    """The names of the alternatives that have a value, and the values."""
    names = ("steps", "epochs", "hours", "small", "big")
    return {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}


@pytest.mark.parametrize(
    ("made", "held"),
    [
        (lambda: Length(), {"steps": 10}),
        (lambda: Length(epochs=2), {"epochs": 2.0}),  # set before `steps` gets its default
        (lambda: Length(hours=2), {"hours": 2.0}),  # and after it
        (lambda: Length(steps=3), {"steps": 3}),
        (lambda: Length(steps=None), {}),
        (lambda: Length(steps=None, epochs=4), {"epochs": 4.0}),
        (lambda: Length({"epochs": 2}), {"epochs": 2.0}),
        (lambda: Length({"epochs": 2, "steps": None}), {"epochs": 2.0}),
        (lambda: Length({"steps": 7}, epochs=2), {"steps": 7}),  # a mapping is laid over the arguments
        (lambda: LongLength(epochs=1, big=2), {"epochs": 1.0, "big": 2}),  # two groups
    ],
)
def test_construction(made, held):
    assert set_in(made()) == held


def test_assignment_clears_the_others():
    length = Length()
    length.hours = 1.5
    assert set_in(length) == {"hours": 1.5}
    length.steps = 4
    assert set_in(length) == {"steps": 4}
    length.epochs = None
    length.name = "x"
    assert set_in(length) == {"steps": 4}


def test_a_refused_assignment_clears_nothing():
    length = Length(steps=4)
    with raises_problem(key="epochs", received="many"):
        length.epochs = "many"
    assert set_in(length) == {"steps": 4}
    length.lock()
    with raises_problem(key="epochs", reason="locked"):
        length.epochs = 2
    assert set_in(length) == {"steps": 4}


def test_overrides_and_layers_clear_the_others():
    plan = Plan()
    plan.override({"length": {"epochs": 3}, "lengths[1]": {"hours": 1}})
    assert (set_in(plan.length), set_in(plan.lengths[1])) == ({"epochs": 3.0}, {"hours": 1.0})
    layers = [Layer("a", {"length": {"epochs": 5}}), Layer("b", {"length": {"steps": 6}})]
    assert set_in(apply_layers(plan, layers).length) == {"steps": 6}
    assert set_in(apply_layers(plan, layers[::-1]).length) == {"epochs": 5.0}
    assert set_in(plan.replace(length={"steps": 1}).length) == {"steps": 1}
    assert set_in(plan.length) == {"epochs": 3.0}


def test_an_override_with_a_mistake_changes_nothing():
    plan = Plan()
    with raises_problem(key="length.nme", received=1):
        plan.override({"length": {"epochs": 3, "nme": 1}})
    assert plan == Plan()


def test_what_is_stored_reads_back():
    plan = Plan()
    plan.length.epochs = 2.5
    again = Plan(dialect.load(plan.to_yaml()))
    assert again == plan
    assert copy.deepcopy(plan) == plan
    assert dialect.load(plan.to_yaml())["length"] == {"epochs": 2.5, "steps": None, "hours": None, "name": ""}


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: Length(steps=3, epochs=2), "Length.epochs: received 2.0, but steps=3 is given, too"),
        (lambda: Length(steps=3, hours=2), "Length.hours: received 2.0, but steps=3 is given, too"),
        (lambda: Length({"steps": 3, "epochs": 2}), "epochs: received 2, but steps=3 is given, too"),
        (lambda: Length({"steps": 10, "epochs": 2}), "give one of them"),  # given, although it is the default
        (lambda: Plan({"length": {"hours": 3, "epochs": 2}}), "length.hours: received 3, but epochs=2 is given, too"),
        (lambda: Plan({"lengths": [{}, {"hours": 3, "epochs": 2}]}), "lengths[1].hours: received 3"),
        (lambda: LongLength(big=1, small=2), "LongLength.big: received 1, but small=2 is given, too"),
    ],
)
def test_two_at_once_are_refused(act, message):
    with pytest.raises(UsageError) as error:
        act()
    assert message in str(error.value)


def test_two_in_one_override_change_nothing():
    length = Length(steps=4)
    with raises_problem(key="hours", received=2, reason="alternatives"):
        length.override({"steps": 5, "hours": 2})
    assert set_in(length) == {"steps": 4}


def test_a_class_with_wrong_declarations_is_refused():
    with raises_problem(
        key="test_a_class_with_wrong_declarations_is_refused.<locals>.Both", reason="steps and epochs are alternatives"
    ):

        @dataclasses.dataclass
        class Both(Length):
            epochs: float | None = 3.0

    with raises_problem(
        key="test_a_class_with_wrong_declarations_is_refused.<locals>.Typo",
        reason="no field 'stepps'",
        remedy="'steps'",
    ):

        @dataclasses.dataclass
        class Typo(Length):
            _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("stepps", "more"),)
            more: int | None = None

    with raises_problem(
        key="test_a_class_with_wrong_declarations_is_refused.<locals>.Change", reason="no field 'nmae'", remedy="'name'"
    ):

        @dataclasses.dataclass
        class Change(Length):
            _may_change: ClassVar[frozenset[str]] = frozenset({"nmae"})


def test_another_default_may_be_the_alternative():
    @dataclasses.dataclass
    class Epochs(Length):
        steps: int | None = None
        epochs: float | None = 3.0

    assert set_in(Epochs()) == {"epochs": 3.0}
    assert set_in(Epochs(steps=5)) == {"steps": 5}


@pytest.mark.parametrize(
    "overrides", [["trainer.epochs=1", "trainer.train_steps=500"], ["trainer={epochs: 1}", "trainer.train_steps=500"]]
)
def test_two_overrides_of_one_request_are_given_at_once(overrides):
    """The order does not matter: neither of them resets the other."""
    for order in (overrides, overrides[::-1]):
        with pytest.raises(UsageError) as error:
            apply(get_exp_config("mnist/local"), overrides=order)
        assert re.search(
            "trainer.(epochs|train_steps): received .* is given, too.*alternatives.*from override", str(error.value)
        )


def test_overrides_that_reset_one_of_them(tmp_path):
    config = apply(get_exp_config("mnist/local"), overrides=["trainer.train_steps=null", "trainer.epochs=1"])
    assert (config.trainer.epochs, config.trainer.train_steps) == (1, None)
    (tmp_path / "short.yaml").write_text("trainer: {epochs: 1}\n")
    config = apply(get_exp_config("mnist/local"), overrides=[str(tmp_path / "short.yaml"), "trainer.train_steps=5"])
    assert (config.trainer.epochs, config.trainer.train_steps) == (None, 5), "a value wins over a file"
