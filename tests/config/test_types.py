"""Types of config fields, and of the classes that declare them."""

import dataclasses
import pathlib
from typing import Annotated, Any, ClassVar

import pydantic
import pytest

from everstep.config import Config
from everstep.engine.config import RuntimeConfig
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

from .config_samples import Holder, Model, Needy, Task


def test_values_of_dicts_become_the_annotated_class_everywhere():
    config = Task(
        {
            "extra": {"units": 4},
            "layers": [{"units": 5}, {"units": 6}],
            "heads": [{"units": 7}],
            "named": {"x": {"units": 8}},
            "free": {"a": {"b": 1}},
        }
    )
    assert isinstance(config.extra, Model)
    assert [layer.units for layer in config.layers] == [5, 6]
    assert isinstance(config.heads, tuple)
    assert config.heads[0].units == 7
    assert config.named["x"].units == 8
    assert config.free.a.b == 1


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("units", "abc", "int"),
        ("units", "3", "int"),
        ("units", True, "int"),
        ("units", 1.5, "int"),
        ("units", None, "int"),
        ("rate", "0.1", "float"),
        ("rate", True, "float"),
        ("bias", 1, "bool"),
        ("bias", "true", "bool"),
        ("name", 3, "str"),
        ("activation", 3, "str | None"),
        ("shape", "12", "tuple[int, ...]"),
        ("shape", [1, "x"], "tuple[int, ...]"),
    ],
)
def test_a_wrong_type_is_refused_wherever_a_value_is_set(field: str, value: Any, expected: str):
    config = Model()
    for act in (
        lambda: Model(**{field: value}),
        lambda: Model({field: value}),
        lambda: setattr(config, field, value),
        lambda: config.override({field: value}),
    ):
        with pytest.raises(UsageError) as error:
            act()
        assert field in str(error.value)
        assert repr(value) in str(error.value)
        assert str(error.value).endswith(f"expected {expected}")
    assert config == Model()


def test_numbers_that_mean_the_same_are_accepted():
    config = Model(units=1000.0, rate=2, shape=[3, 4.0])
    assert (config.units, config.rate, config.shape) == (1000, 2.0, (3, 4))
    assert type(config.units) is int
    assert type(config.rate) is float


def test_an_int_beside_a_float_stays_what_it_was():
    @dataclasses.dataclass
    class Either(Config):
        value: int | float = 0

    assert type(Either(value=1.0).value) is float
    assert type(Either(value=1).value) is int
    with pytest.raises(UsageError):
        Either(value=True)


def test_constraints_in_annotations_hold_and_explain_themselves():
    @dataclasses.dataclass
    class Bounded(Config):
        size: Annotated[int, pydantic.Field(gt=0)] = 1

    with raises_problem(key="size", received=-1, reason="greater than 0"):
        Bounded(size=-1)


def test_text_becomes_a_path_and_choices_hold():
    assert Task(where="a/b").where == pathlib.Path("a/b")
    with raises_problem(key="mode", received="fsat", reason="'fast' or 'slow'"):
        Task(mode="fsat")


def test_required_fields_of_a_sub_config():
    assert Holder({"needy": {"name": "a"}}).needy == Needy(name="a")
    with raises_problem(key="needy.name", reason="is required"):
        Holder({"needy": {"size": 3}})


def test_mistakes_in_a_class_are_found():
    with raises_problem(key="test_mistakes_in_a_class_are_found.<locals>.Silent.units", reason="annotate it"):

        @dataclasses.dataclass
        class Silent(Model):
            units = 5

    with pytest.raises(UsageError, match="_names: is a name that Config itself uses: give it another one"):

        @dataclasses.dataclass
        class Replacing(Config):
            def _names(self):
                return ["Ann", "Bob"]

    with raises_problem(key="test_mistakes_in_a_class_are_found.<locals>.Hiding.replace", reason="reserved name"):

        @dataclasses.dataclass
        class Hiding(Config):
            replace: bool = True

    with raises_problem(
        key="test_mistakes_in_a_class_are_found.<locals>.Clashing.restrictions", reason="reserved name"
    ):

        @dataclasses.dataclass
        class Clashing(Config):
            restrictions: int = 1

    class Undecorated(Config):
        size: int = 3

    with raises_problem(key="test_mistakes_in_a_class_are_found.<locals>.Undecorated", reason="dataclass"):
        Undecorated()


def test_class_variables_are_no_fields():
    @dataclasses.dataclass
    class Named(Config):
        known: ClassVar[dict[str, int]] = {"a": 1}
        size: int = 1

    assert Named().as_dict() == {"size": 1}


def test_none_as_a_default_makes_a_field_optional():
    @dataclasses.dataclass
    class Loose(Config):
        model: Model = None  # type: ignore[assignment]

    assert Loose().model is None
    assert Loose({"model": {"units": 2}}).model == Model(units=2)


def test_the_values_of_a_choice_are_listed_once():
    with pytest.raises(UsageError) as caught:
        RuntimeConfig(mixed_precision_dtype="float12")
    assert str(caught.value).count("'bfloat16'") == 1
