"""Types of config fields: from an annotation to a checker, strict about scalars.

Pydantic does the checking. It is left lenient where a file cannot express what Python means (a list for a
tuple, text for a path or an enum) and made strict where leniency hides mistakes: no text for a number, no
bool for an int. Two numbers do convert: an int is a float, and 1000.0 is an int.

Bounds of numbers, as in `Annotated[int, Ge(1)]`, are rules like others: `Config.validate` checks them, so that a config
may be built in any order, and everything wrong in it is reported together.
"""

import collections.abc
import dataclasses
import functools
import inspect
import math
import numbers
import sys
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from annotated_types import Ge, Gt, Le, Lt

from everstep.errors import Problem, UsageError, join, problems_under

_CONTAINERS = (
    list,
    tuple,
    set,
    frozenset,
    dict,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Mapping,
)


@dataclasses.dataclass(frozen=True)
class FieldType:
    """The type of one config field.

    Attributes:
      expected: The type as a person writes it, for error messages.
      adapter: Pydantic's checker.
    """

    expected: str
    adapter: pydantic.TypeAdapter[Any]

    def convert(self, value: Any) -> Any:
        """Returns `value` as the field stores it.

        Raises:
          UsageError: The value does not fit; paths are relative to the field.
        """
        try:
            return self.adapter.validate_python(value)
        except pydantic.ValidationError as error:
            raise UsageError(_problems(error, value, self.expected)) from None


def field_types(cls: type) -> dict[str, FieldType]:
    """Returns the type of every field of a config dataclass, by name.

    Raises:
      UsageError: The class is no dataclass, or an annotation cannot be resolved.
    """
    return _field_types(cls)  # cached there: mypy takes config classes, whose instances have no hash, for unhashable


@functools.cache
def _field_types(cls: type) -> dict[str, FieldType]:
    require_dataclass(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise UsageError(f"{error}; annotations must resolve in their module", key=cls.__qualname__) from None
    # A default of None makes None a legal value, whatever the annotation.
    optional = {f.name for f in dataclasses.fields(cls) if f.default is None}
    names = [f.name for f in dataclasses.fields(cls)]
    return {name: field_type(hints[name] | None if name in optional else hints[name]) for name in names}


def require_dataclass(cls: type) -> None:
    """Checks that a class which declares fields is decorated.

    Raises:
      UsageError: It is not; names the fields.
    """
    if "__dataclass_fields__" not in cls.__dict__ and (names := own_annotations(cls)):
        raise UsageError(
            f"declares {', '.join(names)}, but is no dataclass, so they would be ignored",
            key=cls.__qualname__,
            remedy="write @dataclasses.dataclass above the class",
        )


def own_annotations(cls: type) -> dict[str, Any]:
    """Returns the annotations of this class alone, unresolved where they cannot be resolved yet."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)


def field_type(annotation: Any) -> FieldType:
    """Returns the checker for one annotation; fields share few of them, and making a checker takes long."""
    expected = spell(annotation)
    try:
        hash(annotation)
    except TypeError:  # Annotated with a list, for example
        return _new_field_type(annotation, expected)
    return _shared_field_type(annotation, expected)


def _new_field_type(annotation: Any, expected: str) -> FieldType:
    strict = _strict(annotation)
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    try:
        adapter = pydantic.TypeAdapter(strict, config=config)
    except pydantic.PydanticUserError:  # dataclasses bring their own config and accept no other
        adapter = pydantic.TypeAdapter(strict)
    return FieldType(expected, adapter)


# Annotations are equal in any order of their alternatives, but are not spelled the same.
_shared_field_type = functools.cache(_new_field_type)


def _as_int(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(value) if isinstance(value, numbers.Integral) else value


_STRICT: dict[Any, Any] = {
    int: Annotated[int, pydantic.Strict(), pydantic.BeforeValidator(_as_int)],
    float: Annotated[float, pydantic.Strict()],
    bool: Annotated[bool, pydantic.Strict()],
    str: Annotated[str, pydantic.Strict()],
}


def _strict(annotation: Any) -> Any:
    """Returns the annotation with every scalar in it made strict."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        # Beside float an int stays as given: 1.0 is the float.
        plain = {int: Annotated[int, pydantic.Strict()]} if float in args else {}
        return Union[tuple(plain.get(arg) or _strict(arg) for arg in args)]  # noqa: UP007
    if origin is Annotated:
        others = [marker for marker in args[1:] if not isinstance(marker, Ge | Gt | Le | Lt)]
        return Annotated[(_strict(args[0]), *others)] if others else _strict(args[0])
    if origin in _CONTAINERS and args:
        return origin[tuple(arg if arg is Ellipsis else _strict(arg) for arg in args)]
    return _STRICT.get(annotation, annotation)


def spell(annotation: Any) -> str:
    """Returns an annotation as a person writes it: `list[int] | None`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(spell(arg) for arg in args)
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    if origin is Annotated:
        return spell(args[0])
    if origin in _CONTAINERS and args:
        return f"{origin.__name__}[{', '.join('...' if a is Ellipsis else spell(a) for a in args)}]"
    if annotation is type(None):
        return "None"
    if getattr(annotation, "_takes_number", False):
        return f"a number or {annotation.__name__}"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


# -- bounds ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The smallest and the largest number that a field takes; None where there is no such bound.

    Attributes:
      at_least: The smallest number.
      above: A number that is too small itself.
      at_most: The largest number.
      below: A number that is too large itself.
    """

    at_least: Any = None
    above: Any = None
    at_most: Any = None
    below: Any = None

    def admits(self, value: Any) -> bool:
        """Returns whether a value is within the bounds; what is no number is. NaN is within none."""
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return True
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """The rule as an error states it: `must be at least 1`, `must be from 0 to below 1`."""
        if self.at_least is not None and self.at_most is not None:
            return f"must be from {self.at_least} to {self.at_most}"
        if self.at_least is not None and self.below is not None and self.below != math.inf:
            return f"must be from {self.at_least} to below {self.below}"
        texts = {"at least": self.at_least, "more than": self.above, "at most": self.at_most, "less than": self.below}
        told = [f"{words} {bound}" for words, bound in texts.items() if bound is not None and bound != math.inf]
        return f"must be {', and '.join([*told, *(['finite'] if self.below == math.inf else [])])}"


def field_bounds(cls: type) -> dict[str, Bounds]:
    """Returns the bounds of those fields of a config class that have any, by name."""
    return _field_bounds(cls)  # cached there, as for `field_types`


@functools.cache
def _field_bounds(cls: type) -> dict[str, Bounds]:
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {field.name: list(_markers(hints[field.name])) for field in dataclasses.fields(cls)}
    return {name: _bounds(markers) for name, markers in found.items() if markers}


def _markers(annotation: Any) -> Iterator[Ge | Gt | Le | Lt]:
    """Yields the bounds in an annotation, also of one alternative of several."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for arg in args:
            yield from _markers(arg)
    if origin is Annotated:
        yield from (marker for marker in args[1:] if isinstance(marker, Ge | Gt | Le | Lt))


def _bounds(markers: list[Ge | Gt | Le | Lt]) -> Bounds:
    given: dict[str, Any] = {}
    for marker in markers:
        match marker:
            case Ge(bound):
                given["at_least"] = bound
            case Gt(bound):
                given["above"] = bound
            case Le(bound):
                given["at_most"] = bound
            case Lt(bound):
                given["below"] = bound
    return Bounds(**given)


# -- errors ------------------------------------------------------------------------------------------------------------


def _problems(error: pydantic.ValidationError, value: Any, expected: str) -> list[Problem]:
    """Returns the findings inside a sub-config, else one that shows the whole value."""
    items = error.errors(include_url=False)
    inner = []
    for item in items:
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, Exception):
            inner += problems_under(_path(item["loc"], value), cause)
    if inner:
        return inner
    # A constraint, as in Annotated[int, Field(gt=0)], is pydantic's to explain; `expected` lists a Literal's values.
    is_explained = items[0]["type"].endswith("_type") or items[0]["type"] == "literal_error"
    is_constraint = len(items) == 1 and "ctx" in items[0] and not is_explained
    reason = f": {items[0]['msg']}" if is_constraint else ""
    return [Problem("", f"expected {expected}{reason}", received=value)]


def _path(location: tuple[int | str, ...], value: Any) -> str:
    """Returns pydantic's location as a key path, without the names it gives to a union's members."""
    path = ""
    for step in location:
        try:
            value = value[step]
        except (TypeError, KeyError, IndexError):
            continue
        path = join(path, f"[{step}]" if isinstance(step, int) else step)
    return path
