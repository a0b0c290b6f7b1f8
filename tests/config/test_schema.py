"""The JSON schema agrees with the config: it takes what the config takes, and refuses what it refuses."""

import collections.abc
import copy
import dataclasses
import enum
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest

from everstep.config import Config, OneOfConfig, apply, dialect, experiments, get_exp_config, load_entry_points
from everstep.config.schema import field_docs, json_schema
from everstep.errors import UsageError
from everstep.task.optim.config import CosineLrConfig


def validator(config: Config, name: str = "own/one") -> Any:
    schema = json.loads(json.dumps(json_schema(config, name), allow_nan=False))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def set_at(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Returns a copy of a tree with one value changed."""
    tree = copy.deepcopy(tree)
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return tree


def places(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every section and every value in a tree with its path."""
    for key, value in tree.items():
        yield (*path, key), value
        if isinstance(value, Mapping):
            yield from places(value, (*path, key))


def levels(tree: Mapping[str, Any]) -> list[list[tuple[str, ...]]]:
    """Returns the paths of all sections and values by their depth: none of a level is inside another one."""
    paths = [path for path, _ in places(tree)]
    return [[path for path in paths if len(path) == depth] for depth in range(1, 1 + max(map(len, paths)))]


def value_at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


# -- shipped experiments ---------------------------------------------------------------------------------------------

load_entry_points()
OPTIMIZER = "trainer.optimizer_config.optimizer"
RATE = "trainer.optimizer_config.learning_rate"
WARMUP = "trainer.optimizer_config.warmup"


@dataclasses.dataclass
class Case:
    tree: dict[str, Any]
    check: Any


@pytest.fixture(scope="module", params=list(experiments()))
def case(request: pytest.FixtureRequest) -> Case:
    config = get_exp_config(request.param)
    return Case({"experiment": request.param, **config.as_dict()}, validator(config, request.param))


def found_at(case: Case, changes: Mapping[tuple[str, ...], Any]) -> set[tuple[Any, ...]]:
    """Returns where the schema finds errors after these changes, all at once."""
    tree = copy.deepcopy(case.tree)
    for path, value in changes.items():
        value_at(tree, path[:-1])[path[-1]] = value
    depth = max(map(len, changes), default=0)  # inside a free mapping an error is found further down
    return {tuple(error.absolute_path)[:depth] for error in case.check.iter_errors(tree)}


def test_the_configuration_itself_is_valid(case: Case):
    case.check.validate(case.tree)
    case.check.validate(dialect.load(dialect.dump(case.tree)))
    case.check.validate({})


def test_other_branches_and_lists_are_valid(case: Case):
    overrides = [
        f"{OPTIMIZER}={{type: adamw, adamw: {{exclude_from_weight_decay: [bias]}}}}",
        f"{RATE}={{type: stepwise, stepwise: {{boundaries: [1, 2], values: [1, 0.1, 1e-3]}}}}",
        "runtime.loss_scale=2",
    ]
    changed = apply(get_exp_config(case.tree["experiment"]), overrides=overrides)
    case.check.validate(changed.as_dict())


NAMED_FREELY = ("trainer", "tracking", "others")
"""By trackers that are installed: the schema cannot know them."""


def test_a_typo_is_found_at_each_level(case: Case):
    sections = [(), *(path for path, value in places(case.tree) if isinstance(value, Mapping) and path != NAMED_FREELY)]
    assert len(sections) >= 10
    for path in sections:
        (error,) = case.check.iter_errors(set_at(case.tree, (*path, "typo"), 1))
        assert tuple(error.absolute_path) == path
        assert "'typo' was unexpected" in error.message or "'typo' does not match any" in error.message


def test_a_wrong_type_is_found_everywhere(case: Case):
    for paths in levels(case.tree):
        sections = {path: isinstance(value_at(case.tree, path), Mapping) for path in paths}
        wrong = {path: [1] if is_section else {"no": {"section": [1]}} for path, is_section in sections.items()}
        assert found_at(case, wrong) == set(wrong)
        wrong = {path: "high" for path in paths if isinstance(value_at(case.tree, path), (int, float))}
        assert found_at(case, wrong) == set(wrong)


def test_every_value_may_be_an_interpolation(case: Case):
    for paths in levels(case.tree):
        assert found_at(case, {path: "${runtime.seed}" for path in paths if path != ("experiment",)}) == set()


@pytest.mark.parametrize("path", [OPTIMIZER, RATE, WARMUP])
def test_a_wrong_branch_is_found(case: Case, path: str):
    where = tuple(path.split("."))
    assert not case.check.is_valid(set_at(case.tree, (*where, "type"), "adamx"))
    assert not case.check.is_valid(set_at(case.tree, (*where, "type"), 3))
    assert not case.check.is_valid(set_at(case.tree, (*where, "adamx"), {}))
    case.check.validate(set_at(case.tree, (*where, "type"), None))


def test_a_learning_rate_may_be_a_number(case: Case):
    case.check.validate(set_at(case.tree, tuple(RATE.split(".")), 0.05))
    assert not case.check.is_valid(set_at(case.tree, tuple(OPTIMIZER.split(".")), 0.05))


def test_a_wrong_value_in_a_branch_is_found(case: Case):
    where = tuple(OPTIMIZER.split("."))
    assert not case.check.is_valid(set_at(case.tree, (*where, "sgd"), {"momentum": "high"}))
    assert not case.check.is_valid(set_at(case.tree, (*where, "sgd"), {"beta_1": 0.9}))
    case.check.validate(set_at(case.tree, (*where, "sgd"), {"momentum": 0}))
    assert not case.check.is_valid(set_at(case.tree, (*where, "sgd"), {"momentum": 1}))


def test_the_keys_beside_the_sections(case: Case):
    header = {"imports": ["my.module"], "gin": "a.b = 1", "defaults": ["_self_", {"opt": "sgd"}]}
    case.check.validate({**case.tree, **header})
    for wrong in ({"experiment": "mnist/other"}, {"imports": [1]}, {"gin": 3}, {"defaults": "opt"}):
        assert not case.check.is_valid({**case.tree, **wrong}), wrong


def test_what_an_editor_shows():
    config = apply(get_exp_config("mnist/mlp"), overrides=["trainer.train_steps=77"])
    schema = json_schema(config, "mnist/mlp")
    assert schema["title"] == "mnist/mlp"
    steps = schema["properties"]["trainer"]["properties"]["train_steps"]
    assert (steps["description"], steps["default"]) == (field_docs(type(config.trainer))["train_steps"], 77)
    rate = schema["properties"]["trainer"]["properties"]["optimizer_config"]["properties"]["learning_rate"]
    assert rate["properties"]["type"]["default"] == "cosine"
    assert rate["properties"]["cosine"]["properties"]["decay_steps"]["default"] is None
    assert "offset" in field_docs(CosineLrConfig)
    assert rate["properties"]["cosine"]["properties"]["offset"]["description"] == field_docs(CosineLrConfig)["offset"]
    kinds = schema["properties"]["task"]["properties"]["model"]["properties"]["kind"]["anyOf"]
    assert {"enum": ["mlp", "cnn"]} in kinds


# -- types -----------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Part(Config):
    size: int = 1


@dataclasses.dataclass
class BigPart(Part):
    weight: float = 1.0


@dataclasses.dataclass(kw_only=True)
class Named(Config):
    name: str


@dataclasses.dataclass
class Choice(OneOfConfig):
    type: str = "one"
    one: Part = Part()
    two: BigPart = BigPart()


@dataclasses.dataclass
class Everything(Config):
    integer: int = 1
    number: float = 1.0
    flag: bool = False
    text: str = "t"
    silently_optional: int = None  # type: ignore[assignment]
    optional: float | None = 1.0
    either: int | str = 1
    mixed: bool | list[int] = False
    literal: Literal["a", 3, None] = "a"
    colour: Colour = Colour.RED
    maybe_colour: Colour | None = None
    path: Path | None = None
    positive: Annotated[int, pydantic.Field(gt=0)] = 1
    short: Annotated[str, pydantic.Field(max_length=2)] = "s"
    pair_of: Annotated[list[int], pydantic.Field(min_length=2, max_length=2)] = [1, 2]
    numbers: list[float] = [1.0]
    optional_list: list[int] | None = None
    nested: list[list[int]] = [[1]]
    pair: tuple[int, str] = (1, "a")
    many: tuple[int, ...] = ()
    sequence: collections.abc.Sequence[int] = (1,)
    unique: set[str] = {"a"}
    table: dict[str, int] = {"a": 1}
    any_table: dict = {}
    any_list: list = []
    anything: Any = None
    part: Part = BigPart()
    maybe_part: Part | None = None
    named: Named | None = None
    parts: list[Part] = [Part(), BigPart()]
    by_name: dict[str, Part] = {}
    choice: Choice = Choice()
    free: Config | None = None


VALUES: list[Any] = [
    *(None, True, 0, 1, -1, 3, 2.0, 2.5, "", "a", "abc", "red", "one", "two", "three"),
    *([], [1], [1, 2], [1.5], ["a"], ["a", "a"], [1, "a"], [[1]], [["a"]], [None], [True], [{}], [{"size": 2}]),
    *([{"size": "x"}], [{"weight": 1}], [{}, {"weight": 2}], [{"depth": 1}], {}, {"a": 1}, {"a": "x"}, {"a": {}}),
    *({"size": 2}, {"size": "x"}, {"weight": 2}, {"depth": 1}, {"name": "n"}, {"a": {"size": 1}}, {"a": {"size": "x"}}),
    *({"type": "two"}, {"type": "three"}, {"type": None}, {"two": {"weight": 1}}, {"one": {"weight": 1}}),
]
# An element of a list that keeps its length keeps its own class, which a schema cannot know.
BEYOND = {("parts", "[{'weight': 1}]"), ("named", "{}")}


@pytest.fixture(scope="module")
def check() -> Any:
    return validator(Everything())


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Everything)])
def test_the_schema_and_the_config_agree(check: Any, name: str):
    for value in VALUES:
        try:
            Everything().override({name: value})
            taken = True
        except UsageError:
            taken = False
        if (name, repr(value)) not in BEYOND:
            assert check.is_valid({name: value}) == taken, (name, value)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Everything)])
def test_an_interpolation_may_replace_a_value_of_each_type(check: Any, name: str):
    check.validate({name: "${other}"})
    if name not in ("text", "either", "path", "anything"):
        assert not check.is_valid({name: "some other text"})


def test_interpolations_inside_lists_and_tables(check: Any):
    check.validate({"numbers": [1, "${a}"], "pair": ["${a}", "b"], "table": {"a": "${a}"}, "parts": ["${a}", {}]})
    assert not check.is_valid({"numbers": [1, "a"]})


def test_one_element_of_a_list_may_be_named(check: Any):
    check.validate({"numbers[0]": 3, "parts[1]": {"size": 2}, "optional_list[0]": 1})
    for wrong in ({"numbers[0]": "x"}, {"parts[1]": {"typo": 2}}, {"numbers[x]": 3}, {"integer[0]": 3}):
        assert not check.is_valid(wrong), wrong


def test_an_open_config_takes_anything():
    @dataclasses.dataclass
    class Holder(Config):
        free: Config = Config({"a": 1, "b": {"c": 2}})

    schema = json_schema(Holder(), "x")
    check = validator(Holder())
    check.validate({"free": {"a": "text", "b": {"d": [1]}, "new": {"x": 1}}})
    assert not check.is_valid({"free": 3})
    free = schema["properties"]["free"]["properties"]
    assert free["a"]["default"] == 1
    assert free["b"]["properties"]["c"]["default"] == 2


@dataclasses.dataclass
class Tree(Config):
    value: int = 0
    child: "Tree | None" = None


def test_a_class_inside_itself_is_described_once():
    check = validator(Tree(child=Tree(value=1)))
    check.validate({"child": {"child": {"value": 3, "child": {"child": None}}}})
    assert not check.is_valid({"child": {"valeu": 3}})


def test_defaults_are_json():
    shown = {
        name: schema.get("default", "none") for name, schema in json_schema(Everything(), "x")["properties"].items()
    }
    assert shown["pair"] == [1, "a"]
    assert shown["colour"] == "red"
    assert shown["unique"] == ["a"]
    assert shown["parts"] == [{"size": 1}, {"size": 1, "weight": 1.0}]
    assert shown["maybe_part"] is None
    assert shown["part"] == "none"  # its own keys have theirs
    at = json_schema(Config({"where": Path("a/b"), "top": math.inf, "what": object()}), "x")["properties"]
    assert at["where"]["default"] == "a/b"
    assert "default" not in at["top"]
    assert "default" not in at["what"]


def test_a_required_field_has_no_default():
    named = json_schema(Everything(), "x")["properties"]["named"]["properties"]
    assert "default" not in named["name"]
