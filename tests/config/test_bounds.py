"""Bounds of fields, as in `Annotated[int, Ge(1)]`, are checked with the other rules, and shown in the schema."""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from annotated_types import Ge, Gt, Lt

from everstep.config import Config
from everstep.config.annotations import Bounds
from everstep.config.schema import json_schema
from everstep.errors import Problem, UsageError


@dataclasses.dataclass
class Inner(Config):
    width: Annotated[int, Ge(1)] = 8
    heads: int = 2

    def _problems(self) -> Iterator[Problem]:
        if self.heads > self.width:
            yield Problem("heads", "must be at most the width", received=self.heads)
        if self.width > 100:
            yield Problem("width", "is too much for this machine", received=self.width)
        elif self.width < 2:
            yield Problem("width", "is told twice", received=self.width)


@dataclasses.dataclass
class Outer(Config):
    inner: Inner = dataclasses.field(default_factory=Inner)
    share: Annotated[float, Ge(0), Lt(1)] = 0.5
    seconds: Annotated[float, Gt(0), Lt(math.inf)] | None = None
    limit: Annotated[float, Ge(0)] | str = "auto"

    def _problems(self) -> Iterator[Problem]:
        yield Problem("", "reads the config held", received=100 // self.inner.width)


def problems(config: Config) -> list[tuple[str, str, Any]]:
    with pytest.raises(UsageError) as caught:
        config.validate()
    return [(one.key, one.reason, one.received) for one in caught.value.problems]


def test_all_bounds_are_reported_together_with_key_and_value_and_before_rules_that_rely_on_them():
    config = Outer()
    config.override({"share": 1.0, "seconds": math.nan, "inner": {"width": 0, "heads": 3}})
    assert problems(config) == [
        ("inner.width", "must be at least 1", 0),
        ("inner.heads", "must be at most the width", 3),
        ("share", "must be from 0 to below 1", 1.0),
        ("seconds", "must be more than 0, and finite", pytest.approx(math.nan, nan_ok=True)),
    ]


def test_the_rules_of_a_class_are_checked_when_the_configs_held_are_right():
    assert problems(Outer()) == [("", "reads the config held", 12)]
    assert problems(Inner(width=101)) == [("width", "is too much for this machine", 101)]
    Inner().validate()


def test_a_value_out_of_bounds_may_be_stored_until_then():
    config = Inner(width=0)
    config.width = 4
    config.validate()


def test_what_is_no_number_has_no_bounds():
    assert not [key for key, _, _ in problems(Outer(limit="auto", seconds=None)) if key]
    assert ("limit", "must be at least 0", -1.0) in problems(Outer(limit=-1.0))


@pytest.mark.parametrize(
    ("bounds", "text", "inside", "outside"),
    [
        (
            Bounds(at_least=1),
            "must be at least 1",
            [1, math.inf, True, None],
            [0, -math.inf, math.nan, np.float32(0.5)],
        ),
        (Bounds(above=0), "must be more than 0", [1e-9, np.int64(1)], [0, -0.0]),
        (Bounds(below=0), "must be less than 0", [-1], [0, 1]),
        (Bounds(at_most=1), "must be at most 1", [1, -5], [1.1]),
        (Bounds(at_least=0, at_most=1), "must be from 0 to 1", [0, 1], [-0.1, 1.1]),
        (Bounds(at_least=0, below=1), "must be from 0 to below 1", [0, 0.99], [1]),
        (Bounds(above=0, at_most=1), "must be more than 0, and at most 1", [1], [0, 2]),
        (Bounds(at_least=0, below=math.inf), "must be at least 0, and finite", [0, 1e300], [math.inf, -1]),
    ],
    ids=str,
)
def test_what_is_within_bounds(bounds, text, inside, outside):
    assert str(bounds) == text
    assert all(map(bounds.admits, inside))
    assert not any(map(bounds.admits, outside))


def test_the_schema_has_the_bounds():
    schema = json.loads(json.dumps(json_schema(Outer(), "x"), allow_nan=False))
    found = schema["properties"]
    assert found["share"]["anyOf"][0] == {"minimum": 0, "exclusiveMaximum": 1, "type": "number"}
    assert {"exclusiveMinimum": 0, "type": "number"} in found["seconds"]["anyOf"]
    assert found["inner"]["properties"]["width"]["anyOf"][0] == {"minimum": 1, "type": "integer"}
