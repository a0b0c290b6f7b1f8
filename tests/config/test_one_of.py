"""OneOfConfig: one branch in use, the others kept."""

import dataclasses

import pytest

from everstep.config import Config, OneOfConfig
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem


@dataclasses.dataclass
class Small(Config):
    width: int = 1

    def validate(self) -> None:
        if self.width < 0:
            raise UsageError("width cannot be negative")


@dataclasses.dataclass
class Large(Config):
    depth: int = 8


@dataclasses.dataclass
class Backbone(OneOfConfig):
    type: str | None = "small"
    small: Small = Small()
    large: Large = Large()


def test_get_returns_the_selected_branch():
    backbone = Backbone()
    assert backbone.get() is backbone.small
    backbone.type = "large"
    assert backbone.get() is backbone.large
    backbone.type = None
    assert backbone.get() is None


def test_as_dict_shows_the_selected_branch_only():
    assert Backbone().as_dict() == {"type": "small", "small": {"width": 1}}
    assert Backbone(type=None).as_dict() == {"type": None}
    assert "large" not in Backbone().to_yaml()


@pytest.mark.parametrize("act", [lambda: Backbone({"type": "smal"}), lambda: Backbone(type="smal")])
def test_an_unknown_type_names_the_nearest(act):
    with pytest.raises(UsageError) as error:
        act()
    assert (error.value.key, error.value.received) == ("type", "smal")
    assert error.value.remedy == "did you mean 'small'?"


def test_a_branch_that_is_not_selected_keeps_what_it_was_given():
    backbone = Backbone()
    backbone.override({"large": {"depth": 3}})
    assert backbone.as_dict() == {"type": "small", "small": {"width": 1}}
    backbone.override({"type": "large"})
    assert backbone.get().depth == 3
    assert backbone.replace(type="small").replace(type="large").get().depth == 3


def test_validate_and_lock():
    backbone = Backbone({"small": {"width": -1}})
    with raises_problem(key="small", reason="width cannot be negative"):
        backbone.validate()
    backbone.replace(type="large").validate()
    backbone.lock()
    with raises_problem(key="depth", reason="locked"):
        backbone.large.depth = 1


def test_restrictions_are_checked_too():
    with raises_problem(reason="violated"):
        Backbone(restrictions=["small.width > 1"]).validate()


def test_get_with_a_key_is_that_of_any_config():
    assert Backbone().get("type") == "small"
    assert Backbone().get("large") == Large()
    assert Backbone().get("medium", 3) == 3
    assert "large" in Backbone()
