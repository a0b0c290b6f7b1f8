"""The space of a sweep: which keys vary, over which values, under which conditions.

A file lists keys of the configuration, dotted or nested:

    task.model.units: [32, 64, 128]                        # one of these
    task.noise: {low: 0.0, high: 0.5, step: 0.1}           # a number
    trainer.optimizer_config.optimizer.type: [adam, sgd]
    trainer.optimizer_config.optimizer.sgd.momentum:
      {low: 0.5, high: 0.99, when: {trainer.optimizer_config.optimizer.type: sgd}}
    trainer.train_steps: 500                               # the same in every trial
    constraints: ["task.model.units * task.noise <= 32"]

On the command line, as users of Hydra write it: `key=1,2,3`, `key=[8],[8,8]`, `key=range(1,5)`,
`key=interval(0.1,0.5)`, `key=int(interval(1,64))`, `key=tag(log,interval(1e-4,1e-1))`.
"""

import ast
import dataclasses
import itertools
import json
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from everstep.config import Layer, dialect, parse_override, split_pairs
from everstep.errors import NOTHING, Problem, UsageError, nearest

ParameterKind = Literal["float", "int", "categorical"]
Values = dict[str, Any]
"""The values of one trial by key; keys whose condition does not hold are left out."""

CONSTRAINTS = "constraints"
"""The key of a file that lists conditions between values; all others are keys of the configuration."""

MAX_GRID = 100_000
"""The maximum number of points in a grid."""

_KINDS = ("float", "int", "categorical")
_FIELDS = ("type", "low", "high", "step", "log", "values", "when")


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One key that varies.

    Attributes:
      key: The key of the configuration, or a group of config files: `task/model`.
      kind: What its values are.
      low: The lowest number.
      high: The highest number, which is included.
      step: The distance of two neighbours; None: any float in between, every integer.
      log: Whether numbers are drawn so that every order of magnitude is as likely.
      choices: The values of a categorical key.
      when: Keys and, for each, the values for which this one is used at all.
      origin: Where it is written, for errors.
    """

    key: str
    kind: ParameterKind
    low: float | None = None
    high: float | None = None
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    origin: str = ""

    def __post_init__(self) -> None:
        if reason := self._reason():
            raise UsageError(reason, key=self.key, received=self._shown(), origin=self.origin)

    def _reason(self) -> str:
        """Returns why it cannot be used; empty if it can."""
        if self.kind == "categorical":
            repeated = len({spelled(value) for value in self.choices}) < len(self.choices)
            return "expected at least one value" if not self.choices else "lists a value twice" if repeated else ""
        for name in ("low", "high", "step"):
            value = getattr(self, name)
            if value is None and name == "step":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return f"{name} must be a number"
            if self.kind == "int" and value != int(value):
                return f"{name} must be a whole number"
        if self.low > self.high:  # type: ignore[operator]
            return "low is above high"
        if self.log and self.low <= 0:  # type: ignore[operator]
            return "with log, low must be above 0"
        if self.log and self.step is not None:
            return "has both log and step"
        return "step must be above 0" if self.step is not None and self.step <= 0 else ""

    def _shown(self) -> Any:
        return list(self.choices) if self.kind == "categorical" else {"low": self.low, "high": self.high}

    def is_active(self, values: Mapping[str, Any]) -> bool:
        """Returns whether the key is used together with the values of the keys before it."""
        return all(key in values and values[key] in wanted for key, wanted in self.when.items())

    def points(self) -> tuple[Any, ...] | None:
        """Returns all values, if they can be counted; None for floats without a step."""
        if self.kind == "categorical":
            return self.choices
        if self.low is None or self.high is None or (self.kind == "float" and self.step is None):
            return None
        step = self.step or 1
        size = math.floor((self.high - self.low) / step + 1e-9) + 1
        if size > MAX_GRID:
            return None
        values = [self.low + number * step for number in range(size)]
        return (
            tuple(int(value) for value in values) if self.kind == "int" else tuple(float(f"{v:.12g}") for v in values)
        )

    def ends(self) -> tuple[Any, ...]:
        """Returns the values that are checked before the first trial: all choices, or the lowest and the highest."""
        if self.kind == "categorical":
            return self.choices
        return (int(self.low or 0), int(self.high or 0)) if self.kind == "int" else (self.low, self.high)

    def suggest(self, trial: Any) -> Any:
        """Returns the value that an Optuna trial has for this key, or draws one."""
        if self.kind == "categorical":
            labels = [_label(choice) for choice in self.choices]
            return self.choices[labels.index(trial.suggest_categorical(self.key, labels))]
        if self.kind == "int":
            step = 1 if self.step is None else int(self.step)
            return trial.suggest_int(self.key, int(self.low or 0), int(self.high or 0), step=step, log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)

    def label(self, value: Any) -> Any:
        """Returns a value as Optuna stores it: lists and mappings as text."""
        return _label(value) if self.kind == "categorical" else value

    def as_dict(self) -> dict[str, Any]:
        """Returns it in plain values, for `sweep.json`."""
        found = dataclasses.asdict(self) | {"when": {key: list(wanted) for key, wanted in self.when.items()}}
        empty = {
            "origin",
            *(name for name, value in found.items() if value is None or value is False or value in ((), {})),
        }
        return {name: value for name, value in found.items() if name not in empty}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> "Dimension":
        """Returns what `as_dict` returned."""
        when = {key: tuple(wanted) for key, wanted in tree.get("when", {}).items()}
        return cls(**{**tree, "choices": tuple(tree.get("choices", ())), "when": when})


def _label(choice: Any) -> Any:
    return choice if choice is None or isinstance(choice, bool | int | float | str) else json.dumps(choice)


def spelled(value: Any) -> str:
    """Returns a value as it is written after `key=`."""
    if isinstance(value, str):
        return (
            value
            if value and re.fullmatch(r"[\w./:+-]+", value) and dialect.plain(value) == value
            else json.dumps(value)
        )
    return repr(value) if isinstance(value, float) else json.dumps(value)


@dataclasses.dataclass(frozen=True)
class Space:
    """Everything that may be tried.

    Attributes:
      dimensions: The keys that vary, each after those that its condition names.
      fixed: Keys that have the same value in every trial.
      constraints: Conditions between values: `task.model.units * task.layers <= 512`.
    """

    dimensions: tuple[Dimension, ...]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constraints: tuple[str, ...] = ()

    def suggest(self, trial: Any) -> Values:
        """Returns the values of an Optuna trial; what it does not have yet is drawn."""
        values: Values = {}
        for dimension in self.dimensions:
            if dimension.is_active(values):
                values[dimension.key] = dimension.suggest(trial)
        return values

    def stored(self, trial: Any) -> Values:
        """Returns the values of a trial that has them all."""
        labels, values = trial.params, dict[str, Any]()
        for dimension in self.dimensions:
            if dimension.key in labels:
                choices = {json.dumps(_label(choice)): choice for choice in dimension.choices}
                held = labels[dimension.key]
                values[dimension.key] = choices.get(json.dumps(held), held)
        return values

    def broken(self, values: Mapping[str, Any]) -> str | None:
        """Returns the first constraint that values violate; None if none. One on keys that are not used holds."""
        known = {**self.fixed, **values}
        return next((text for text in self.constraints if not _Expression(text).holds(known)), None)

    def grid(self) -> list[Values]:
        """Returns every point of the grid; a key is left out where its condition does not hold.

        Raises:
          UsageError: A key has no countable values, or there are too many points.
        """
        points: list[Values] = [{}]
        for dimension in self.dimensions:
            choices = dimension.points()
            if choices is None:
                raise UsageError(
                    "has no countable values, which a grid needs",
                    key=dimension.key,
                    remedy="give it a step or a list of values, or use another --sampler",
                    origin=dimension.origin,
                )
            if len(points) * len(choices) > MAX_GRID:
                raise UsageError(
                    f"the grid has more than {MAX_GRID} points", key=dimension.key, remedy="use --sampler random or tpe"
                )
            points = [
                {**point, **one}
                for point in points
                for one in ([{dimension.key: value} for value in choices] if dimension.is_active(point) else [{}])
            ]
        return [point for point in points if self.broken(point) is None]

    def samples(self) -> Iterator[tuple[Dimension, Values]]:
        """Yields values to check before the first trial: each value of each key once, the others at their first."""
        for dimension in self.dimensions:
            for value in dimension.ends():
                values: Values = {}
                for other in self.dimensions:
                    wanted = [one for one in other.ends() if self._leads_to(dimension, other.key, one)]
                    if other.is_active(values):
                        values[other.key] = value if other is dimension else (wanted or list(other.ends()))[0]
                yield dimension, values

    def _leads_to(self, dimension: Dimension, key: str, value: Any) -> bool:
        """Returns whether the condition of a dimension, and of those it needs, admits a value of another key."""
        if key in dimension.when and value not in dimension.when[key]:
            return False
        above = [one for one in self.dimensions if one.key in dimension.when]
        return all(self._leads_to(one, key, value) for one in above)

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Returns values as overrides of a command line: `task.model.units=64`."""
        return [f"{key}={spelled(value)}" for key, value in {**self.fixed, **values}.items()]

    def renamed(self, names: Mapping[str, str]) -> "Space":
        """Returns the space with other names for its keys."""
        return Space(
            tuple(
                dataclasses.replace(
                    one,
                    key=names.get(one.key, one.key),
                    when={names.get(key, key): wanted for key, wanted in one.when.items()},
                )
                for one in self.dimensions
            ),
            {names.get(key, key): value for key, value in self.fixed.items()},
            self.constraints,
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns it in plain values, for `sweep.json` and the fingerprint of a sweep."""
        return {
            "dimensions": [one.as_dict() for one in self.dimensions],
            "fixed": dict(self.fixed),
            "constraints": list(self.constraints),
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> "Space":
        """Returns what `as_dict` returned."""
        dimensions = tuple(Dimension.from_dict(one) for one in tree["dimensions"])
        return cls(dimensions, dict(tree["fixed"]), tuple(tree["constraints"]))


def create_space(source: "Space | Mapping[str, Any] | str | Path | None", words: Sequence[str] = ()) -> Space:
    """Returns a space from a file or a mapping, and from words of a command line, which win.

    Raises:
      UsageError: It is empty, or a key of it cannot be used; with the file and line.
    """
    if isinstance(source, Space):
        layer, dimensions, fixed = Layer("", {}), {one.key: one for one in source.dimensions}, dict(source.fixed)
        constraints = list(source.constraints)
    else:
        layer = Layer.from_file(source) if isinstance(source, str | Path) else Layer("the space", source or {})
        dimensions, fixed, constraints = dict[str, Dimension](), dict[str, Any](), _constraints(layer)
        for key, value in _leaves({key: one for key, one in layer.tree.items() if key != CONSTRAINTS}, ""):
            if (dimension := _read(key, value, layer.origin_of(key))) is not None:
                dimensions[key] = dimension
            else:
                fixed[key] = value
    for word in words:
        for pair in split_pairs(word):
            key, _, text = pair.strip().partition("=")
            if (dimension := parse_dimension(key.strip(), text)) is not None:
                dimensions[dimension.key] = dimension
                fixed.pop(dimension.key, None)
    if not dimensions:
        raise UsageError(
            "is empty: no key varies",
            key="--space",
            received=layer.origin if layer.tree else NOTHING,
            remedy="list values in a file, or write key=1,2,3",
        )
    space = Space(tuple(_ordered(dimensions)), fixed, tuple(constraints))
    for text in constraints:
        _Expression(text, layer.origin_of(CONSTRAINTS)).check([*dimensions, *fixed])
    return space


def is_swept(word: str) -> bool:
    """Returns whether a word of a command line varies a key: `key=1,2`, `key=range(3)`; else it sets one."""
    pairs = list(split_pairs(word))
    swept = [parse_dimension(*pair.strip().partition("=")[::2]) is not None for pair in pairs if "=" in pair]
    if any(swept) and not all(swept):
        raise UsageError(
            "varies one key and sets another", key="KEY=VALUE", received=word, remedy="use a word for each"
        )
    return bool(swept) and all(swept)


_CALL = re.compile(r"\s*(range|interval|choice|int|tag)\((.*)\)\s*", re.DOTALL)
_USAGE = {
    "range": "range(stop), range(start,stop) or range(start,stop,step)",
    "interval": "interval(low,high)",
    "int": "int(interval(low,high))",
    "tag": "tag(log,interval(low,high)) or tag(log,int(interval(low,high)))",
}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


def parse_dimension(key: str, text: str) -> Dimension | None:
    """Returns what `key=text` varies; None where it only sets the key.

    Raises:
      UsageError: It is neither: `key=range(a)`.
    """
    text = text.strip()
    origin = f"{key}={text}"
    if call := _CALL.fullmatch(text):
        return _called(key, text, call[1], call[2], origin)
    parts = _alternatives(text)
    if len(parts) < 2:
        return None
    return Dimension(key, "categorical", choices=tuple(_value(part) for part in parts if part), origin=origin)


def _alternatives(text: str) -> list[str]:
    """Returns what commas separate, unless they are in brackets or quotes: `[8,8],[16]` has two parts."""
    parts, closing = [""], ""
    for character in text:
        if character == "," and not closing:
            parts.append("")
            continue
        if closing and character == closing[-1]:
            closing = closing[:-1]
        elif closing[-1:] not in ("'", '"'):
            if character in _CLOSING:
                closing += _CLOSING[character]
            elif character in "'\"" and not parts[-1].strip():  # elsewhere a quote is an apostrophe
                closing += character
        parts[-1] += character
    return [part.strip() for part in parts]


def _called(key: str, text: str, name: str, inside: str, origin: str) -> Dimension:
    """Returns what `range(…)`, `choice(…)` or an interval says."""
    parts = _alternatives(inside)
    if name == "choice":
        return Dimension(key, "categorical", choices=tuple(_value(part) for part in parts if part), origin=origin)
    is_whole, is_log, outer = False, False, name
    if name == "tag" and parts[0] == "log" and (call := _CALL.fullmatch(inside.partition(",")[2])):
        is_log, name, parts = True, call[1], _alternatives(call[2])
    if name == "int" and (call := _CALL.fullmatch(",".join(parts))):
        is_whole, name, parts = True, call[1], _alternatives(call[2])
    values = [dialect.plain(part) for part in parts if part]
    expected = {"range": (1, 2, 3)} if outer == "range" else {"interval": (2,)}
    if len(values) not in expected.get(name, ()) or not all(_is_number(value) for value in values):
        raise UsageError(f"expected {_USAGE[outer]}, of numbers", key=key, received=text)
    if name == "interval" and is_whole:
        return Dimension(key, "int", values[0], values[1], log=is_log, origin=origin)
    if name == "interval":
        return Dimension(key, "float", float(values[0]), float(values[1]), log=is_log, origin=origin)
    start, stop, step = (0, values[0], 1) if len(values) == 1 else (*values, 1)[:3]
    size = math.ceil((stop - start) / step - 1e-9) if step > 0 else 0  # as Python and Hydra: without stop itself
    if not 0 < size <= MAX_GRID:
        raise UsageError("has no values, or too many", key=key, received=text)
    if all(isinstance(value, int) for value in (start, stop, step)):
        return Dimension(key, "int", start, start + (size - 1) * step, step if step != 1 else None, origin=origin)
    last = float(f"{start + (size - 1) * step:.12g}")
    return Dimension(key, "float", float(start), last, float(step), origin=origin)


def _value(part: str) -> Any:
    """Returns one alternative as it would be after `key=`."""
    return parse_override(f"key={part}")[1] if part[0] in "[{'\"" else dialect.plain(part)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _leaves(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yields the keys of a nested tree; a mapping with the fields of a dimension is one."""
    for name, value in tree.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value and not _is_dimension(value):
            yield from _leaves(value, key)
        else:
            yield key, value


def _is_dimension(tree: Mapping[str, Any]) -> bool:
    return "values" in tree or ("low" in tree and "high" in tree) or tree.get("type") in _KINDS


def _read(key: str, value: Any, origin: str) -> Dimension | None:
    if isinstance(value, list | tuple):
        return Dimension(key, "categorical", choices=tuple(value), origin=origin)
    if not isinstance(value, Mapping) or not value:
        return parse_dimension(key, value) if isinstance(value, str) and _CALL.fullmatch(value) else None
    unknown = [name for name in value if name not in _FIELDS]
    if unknown:
        raise UsageError("unknown field", key=f"{key}.{unknown[0]}", remedy=nearest(unknown[0], _FIELDS), origin=origin)
    kind: Any = value.get("type")
    if kind is None:
        numbers = [value.get(name) for name in ("low", "high", "step") if value.get(name) is not None]
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        kind = "categorical" if "values" in value else "int" if whole else "float"
    if kind not in _KINDS:
        raise UsageError("unknown type", key=f"{key}.type", received=kind, remedy=nearest(str(kind), _KINDS))
    when = value.get("when") or {}
    if not isinstance(when, Mapping):
        raise UsageError("expected keys with values", key=f"{key}.when", received=when, origin=origin)
    wanted = {str(name): tuple(one) if isinstance(one, list) else (one,) for name, one in when.items()}
    if kind == "categorical":
        choices = value.get("values")
        if not isinstance(choices, list):
            raise UsageError("expected a list of values", key=f"{key}.values", received=choices, origin=origin)
        return Dimension(key, kind, choices=tuple(choices), when=wanted, origin=origin)
    bounds: dict[str, Any] = {name: value.get(name) for name in ("low", "high", "step")}
    if kind == "float":
        bounds = {k: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for k, v in bounds.items()}
    return Dimension(key, kind, **bounds, log=bool(value.get("log", False)), when=wanted, origin=origin)


def _ordered(dimensions: Mapping[str, Dimension]) -> Iterator[Dimension]:
    """Yields dimensions so that each follows those that its condition names.

    Raises:
      UsageError: A condition names a key that does not vary, a value that it never has, or leads back to itself.
    """
    for one in dimensions.values():
        for key, wanted in one.when.items():
            if key not in dimensions:
                raise UsageError(
                    f"its condition names {key!r}, which does not vary",
                    key=f"{one.key}.when",
                    remedy=nearest(key, dimensions),
                    origin=one.origin,
                )
            choices = dimensions[key].points()
            if choices is not None and (never := [value for value in wanted if value not in choices]):
                raise UsageError(
                    f"{key!r} never has this value", key=f"{one.key}.when", received=never[0], origin=one.origin
                )
    done: set[str] = set()
    while len(done) < len(dimensions):
        ready = [one for one in dimensions.values() if one.key not in done and done.issuperset(one.when)]
        if not ready:
            left = next(one for one in dimensions.values() if one.key not in done)
            raise UsageError("its condition leads back to itself", key=f"{left.key}.when", origin=left.origin)
        yield ready[0]
        done.add(ready[0].key)


def _constraints(layer: Layer) -> list[str]:
    found = layer.tree.get(CONSTRAINTS) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        origin = layer.origin_of(CONSTRAINTS)
        raise UsageError(
            "expected a list of conditions such as 'a.b < c'", key=CONSTRAINTS, received=found, origin=origin
        )
    return found


_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda value, held: value in held,
    ast.NotIn: lambda value, held: value not in held,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}


class _Expression:
    """A condition between values, evaluated without Python's `eval`: numbers, keys, comparisons, `and`, `or`."""

    def __init__(self, text: str, origin: str = "") -> None:
        self._text, self._origin = text, origin
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise self._error("is not a condition such as 'a.b < c'") from None

    def check(self, known: Sequence[str]) -> None:
        """Refuses keys that are not in the space, and anything that is no condition."""
        for node in ast.walk(self._tree):
            key = _dotted(node)
            if isinstance(node, ast.Attribute | ast.Name) and key is not None:
                if key not in known and not any(name.startswith(f"{key}.") for name in known):
                    raise UsageError(
                        f"there is no key {key!r} in the space",
                        key=CONSTRAINTS,
                        received=self._text,
                        remedy=nearest(key, known),
                        origin=self._origin,
                    )
            elif not isinstance(
                node,
                ast.Compare
                | ast.BoolOp
                | ast.BinOp
                | ast.UnaryOp
                | ast.Constant
                | ast.List
                | ast.Tuple
                | ast.operator
                | ast.cmpop
                | ast.boolop
                | ast.unaryop
                | ast.expr_context,
            ) or (isinstance(node, ast.operator | ast.cmpop | ast.unaryop) and type(node) not in _OPERATORS):
                raise self._error("only keys, numbers, + - * / %, comparisons, and, or, not are allowed")

    def holds(self, values: Mapping[str, Any]) -> bool:
        try:
            return bool(self._value(self._tree, values))
        except KeyError:  # a key that is not used with these values
            return True
        except (TypeError, ZeroDivisionError, ArithmeticError) as error:
            raise self._error(f"cannot be computed: {error}") from None

    def _value(self, node: ast.AST, values: Mapping[str, Any]) -> Any:
        if isinstance(node, ast.Attribute | ast.Name):
            return values[_dotted(node) or ""]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(one, values) for one in node.elts]
        if isinstance(node, ast.BoolOp):
            found = [self._value(one, values) for one in node.values]
            return all(found) if isinstance(node.op, ast.And) else any(found)
        if isinstance(node, ast.UnaryOp):
            return _OPERATORS[type(node.op)](self._value(node.operand, values))
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](self._value(node.left, values), self._value(node.right, values))
        if isinstance(node, ast.Compare):
            found = [self._value(one, values) for one in (node.left, *node.comparators)]
            pairs = zip(node.ops, itertools.pairwise(found), strict=True)
            return all(_OPERATORS[type(each)](*pair) for each, pair in pairs)
        raise self._error("is not a condition such as 'a.b < c'")

    def _error(self, reason: str) -> UsageError:
        return UsageError([Problem(CONSTRAINTS, reason, self._origin, self._text)])


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = _dotted(node.value)
        return None if above is None else f"{above}.{node.attr}"
    return None
