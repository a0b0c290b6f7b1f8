"""The texts under fields."""

import dataclasses

import pytest

from everstep.config import Config, experiments, get_exp_config, load_entry_points
from everstep.config.schema import field_docs


@dataclasses.dataclass
class Base(Config):
    """A class's own docstring belongs to no field."""

    width: int = 1
    """How wide."""
    height: int = 2
    """How high.

    Measured
      upwards.
    """
    bare: int = 3
    depth: int = 4
    """How deep."""

    def area(self) -> int:
        """Is a method."""
        return self.width * self.height


@dataclasses.dataclass
class Sub(Base):
    width: int = 10
    """How wide a sub is."""
    depth: int = 40
    colour: str = "red"
    "Which colour."


def test_texts_of_own_fields():
    docs = field_docs(Base)
    assert docs == {"width": "How wide.", "height": "How high.\n\nMeasured\n  upwards.", "depth": "How deep."}


def test_inherited_fields_have_the_text_of_the_class_that_declares_them():
    docs = field_docs(Sub)
    assert docs["width"] == "How wide a sub is."
    assert docs["height"] == field_docs(Base)["height"]
    assert docs["depth"] == "How deep."  # declared anew, but without a text of its own
    assert docs["colour"] == "Which colour."


def test_classes_inside_functions():
    @dataclasses.dataclass
    class Local(Config):
        text: str = """
at the left margin
"""
        """Some text."""

    assert field_docs(Local) == {"text": "Some text."}


def test_a_class_without_source_has_no_texts():
    scope = {"__name__": "typed_into_a_console", "Config": Config, "dataclasses": dataclasses}
    exec("@dataclasses.dataclass\nclass Typed(Config):\n  a: int = 1\n  'A text.'\n", scope)
    typed: type = scope["Typed"]  # type: ignore[assignment]
    assert typed().a == 1
    assert field_docs(typed) == {}
    mixed = dataclasses.dataclass(type("Mixed", (typed, Base), {}))
    assert field_docs(mixed) == field_docs(Base)


def test_what_is_returned_is_the_callers_own():
    field_docs(Base).clear()
    assert field_docs(Base)


def classes_in(config: Config) -> set[type]:
    found = {type(config)}
    for _, child in config._children(config._names()):
        found |= classes_in(child)
    return found


load_entry_points()


@pytest.mark.parametrize("name", experiments())
def test_every_field_of_a_shipped_experiment_has_a_text(name: str):
    for cls in classes_in(get_exp_config(name)):
        silent = {field.name for field in dataclasses.fields(cls)} - set(field_docs(cls))
        assert not silent, f"{cls.__qualname__}: write below each of {sorted(silent)} what it means"
