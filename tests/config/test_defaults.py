"""The defaults of a class, and where a config still holds them."""

import dataclasses
from typing import Any

from everstep.config import Config, OneOfConfig
from everstep.config.base import at_default, class_defaults


@dataclasses.dataclass
class Part(Config):
    size: int = 1
    rate: float = 1


@dataclasses.dataclass
class BigPart(Part):
    weight: float = 2.0


@dataclasses.dataclass
class Choice(OneOfConfig):
    type: str | None = "one"
    one: Part = Part()
    two: BigPart = BigPart()


@dataclasses.dataclass(kw_only=True)
class Whole(Config):
    name: str
    part: Part = Part(size=5)
    shape: tuple[int, ...] = [1, 2]  # type: ignore[assignment]
    parts: list[Part] = [Part()]
    table: dict[str, Any] = {"a": 1, "b": {"c": 2}}
    maybe: Part | None = None
    choice: Choice = Choice()


def test_defaults_are_as_an_instance_holds_them():
    defaults = class_defaults(Whole)
    assert "name" not in defaults
    assert defaults["shape"] == (1, 2)
    assert defaults["part"] == Part(size=5)
    assert class_defaults(Part) == {"size": 1, "rate": 1.0}
    assert type(class_defaults(Part)["rate"]) is float
    defaults["parts"].clear()
    assert class_defaults(Whole)["parts"] == [Part()]


def test_an_untouched_config_is_at_its_defaults():
    assert at_default(Whole(name="n")) == {
        *("part.size", "part.rate", "shape", "parts", "table", "maybe"),
        *("choice.type", "choice.one.size", "choice.one.rate"),
        *("choice.two.size", "choice.two.rate", "choice.two.weight"),
    }


def test_the_holders_default_counts_not_the_classes():
    assert "part.size" not in at_default(Whole(name="n", part=Part()))
    assert "part.size" in at_default(Whole(name="n", part=Part(size=5)))


def test_a_config_of_another_class_has_the_defaults_of_that_class():
    found = at_default(Whole(name="n", part=BigPart(weight=3)))
    assert {"part.size", "part.rate"} <= found
    assert "part.weight" not in found


def test_what_was_changed_inside_is_not_at_its_default():
    changed = Whole(
        name="n", parts=[Part(size=2), BigPart()], maybe=Part(rate=3), table={"a": 2, "b": {"c": 2, "d": 1}}
    )
    found = at_default(changed)
    inside = {path for path in found if path.startswith(("parts", "maybe", "table"))}
    assert inside == {"parts[0].rate", "parts[1].size", "parts[1].rate", "parts[1].weight", "maybe.size", "table.b.c"}
