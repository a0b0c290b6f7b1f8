"""Files and overrides over a config's defaults."""

import dataclasses
import json
import math
import pathlib
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from everstep.config import Config, apply, dialect, parse_override
from everstep.config.overrides import override_layers
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

from .config_samples import write_config


@dataclasses.dataclass
class Trainer(Config):
    train_steps: int = 0
    rate: float = 0.1
    mode: str = "on"
    name: str | None = "x"
    sizes: list[int] = [1]
    nested: dict[str, Any] = {}


@dataclasses.dataclass
class Experiment(Config):
    trainer: Trainer = Trainer()
    note: str = ""


leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


trainers = st.fixed_dictionaries(
    {},
    optional={
        "train_steps": st.integers(),
        "rate": st.floats(allow_nan=False),
        "mode": st.text() | st.sampled_from(["off", "no", "1e3", "None", "null", "<<", "=", "0x1", "1_0"]),
        "name": st.none() | st.text(),
        "sizes": st.lists(st.integers()),
        "nested": st.dictionaries(st.text(), leaf),
    },
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trainers)
def test_a_config_repeats_itself_from_its_dict_and_its_file(tmp_path: pathlib.Path, values: dict[str, Any]):
    config = Experiment({"trainer": values})
    again = Experiment()
    again.override(config.as_dict())
    assert again == config
    config.save_yaml(tmp_path / "config.yaml")
    assert apply(Experiment(), [tmp_path / "config.yaml"]) == config


@settings(max_examples=100, deadline=None)
@example('"[')
@given(
    st.recursive(
        leaf.filter(lambda v: v not in (math.inf, -math.inf)),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=6,
    )
)
def test_any_value_can_be_an_override_in_json(value: Any):
    text = json.dumps(value)
    expected = json.loads(text)
    assert parse_override(f"a.b={text}") == ("a.b", dialect.plain(text) if text[0] not in '["' else expected)
    layers = override_layers(f"a.b={text},c=[1,2]")
    assert [layer.tree for layer in layers] == [{"a": {"b": parse_override(f"a={text}")[1]}}, {"c": [1, 2]}]


def test_later_layers_win(tmp_path: pathlib.Path):
    first = write_config(tmp_path, "trainer: {train_steps: 1, rate: 1, mode: a}", "1.yaml")
    second = write_config(tmp_path, "trainer: {train_steps: 2, rate: 2}", "2.yaml")
    base = Experiment()
    config = apply(base, [first, second], ["trainer.train_steps=3", "note=a", "note=b"])
    assert (config.trainer.train_steps, config.trainer.rate, config.trainer.mode) == (3, 2.0, "a")
    assert config.note == "b"
    assert base == Experiment()


def test_every_problem_names_its_origin(tmp_path: pathlib.Path):
    path = write_config(tmp_path, "trainer: {train_stpes: 1}\nnoet: x\n")
    with pytest.raises(UsageError) as error:
        apply(Experiment(), [path], ["trainer.rate=fast", "trainer.nane=1"])
    lines = str(error.value).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("trainer.train_stpes: received 1, unknown key: did you mean 'train_steps'")
    assert lines[0].endswith(f"(from {path}:1)")
    assert lines[2] == ("trainer.rate: received 'fast', expected float (from override 'trainer.rate=fast')")
    assert "from override 'trainer.nane=1'" in lines[3]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("trainer.train_steps=100", "trainer.train_steps", 100),
        (" a.b = 1 ", "a.b", 1),
        ("a=None", "a", None),
        ("a=", "a", ""),
        ("a=[1, 'x', 1e-3, off]", "a", [1, "x", 1e-3, "off"]),
        ("a={b: 1, c: {d: null}}", "a", {"b": 1, "c": {"d": None}}),
        ("a='None'", "a", "None"),
        ('a="1"', "a", "1"),
        ("a=data/*.tfrecord", "a", "data/*.tfrecord"),
        ("a=*.tfrecord", "a", "*.tfrecord"),
        ("a=x #1", "a", "x #1"),
        ("a=b: c", "a", "b: c"),
        ("a=x=y", "a", "x=y"),
        ("a=gs://b/c", "a", "gs://b/c"),
        ("a[0].b=1", "a[0].b", 1),
    ],
)
def test_one_override(text: str, key: str, value: Any):
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["trainer.train_steps", "=1", "a..b=1", "1a=2", ""])
def test_bad_overrides_are_quoted(text: str):
    with raises_problem(key="override", received=text, reason="expected key=value"):
        parse_override(text)


@pytest.mark.parametrize("text", ["a=[1", "a='x"])
def test_bad_values_of_overrides_are_quoted(text: str):
    with raises_problem(key=f"override {text!r}, line 1"):
        parse_override(text)


@pytest.mark.parametrize(
    ("text", "trees"),
    [
        ("a.b=1,c=[1,2]", [{"a": {"b": 1}}, {"c": [1, 2]}]),
        (" a=1 , b={x: 1, y: [2, 3]},c='p,q=r'", [{"a": 1}, {"b": {"x": 1, "y": [2, 3]}}, {"c": "p,q=r"}]),
        ("a=/x/*.rec,/y/*.rec,b=2", [{"a": "/x/*.rec,/y/*.rec"}, {"b": 2}]),
        ("a=it's,b=2", [{"a": "it's"}, {"b": 2}]),
        ("a=1,", [{"a": 1}]),
        ("a=x[0,b=1", [{"a": "x[0"}, {"b": 1}]),
        ("a=null,b=1e3", [{"a": None}, {"b": 1000.0}]),
        ("{a: {b: 1}}", [{"a": {"b": 1}}]),
        ('{"a": {"b": 1}}', [{"a": {"b": 1}}]),
        ("a:\n  b: 1\n", [{"a": {"b": 1}}]),
    ],
)
def test_several_overrides_in_one_text(text: str, trees: list[Any]):
    assert [layer.tree for layer in override_layers(text)] == trees


def test_an_override_may_be_a_file(tmp_path: pathlib.Path):
    path = write_config(tmp_path, "note: hello")
    assert apply(Experiment(), [], [f" {path}"]).note == "hello"
    plain = write_config(tmp_path, "note: hi", "no_suffix")
    assert apply(Experiment(), [], [str(plain)]).note == "hi"
    with raises_problem(key="config file missing.yaml", reason="does not exist"):
        apply(Experiment(), [], ["missing.yaml"])


@pytest.mark.parametrize("text", ["train_steps", "", "a\x00b"])
def test_text_that_is_no_override_is_refused(text: str):
    with raises_problem(key="override", reason="expected key=value, ~key") as error:
        override_layers(text)
    assert (error.value.key, error.value.received) == ("override", text)


def test_indexed_overrides_build_and_change_lists():
    config = apply(Experiment(), [], ["trainer.sizes[0]=7,trainer.sizes[1]=8"])
    assert config.trainer.sizes == [7, 8]
    with raises_problem(key="trainer.sizes[4]", received=1):
        apply(Experiment(), [], ["trainer.sizes[4]=1"])


def test_the_elements_of_a_list_come_in_any_order():
    given = "trainer.sizes[2]=3,trainer.train_steps=5,trainer.sizes[0]=1,trainer.sizes[1]=2,trainer.sizes[0]=7"
    config = apply(Experiment(), [], [given])
    assert (config.trainer.sizes, config.trainer.train_steps) == ([7, 2, 3], 5)
    with raises_problem(key="trainer.sizes[2]", received=3, reason="no such element"):
        apply(Experiment(trainer={"sizes": []}), [], ["trainer.sizes[2]=3,trainer.sizes[0]=1"])


def test_an_integral_float_and_none_in_overrides():
    config = apply(Experiment(), [], ["trainer.train_steps=1e3,trainer.name=None,trainer.mode=off"])
    assert (config.trainer.train_steps, config.trainer.name, config.trainer.mode) == (1000, None, "off")


def test_yaml_is_block_style_with_lists_on_one_line():
    text = Experiment({"trainer": {"sizes": [1, 2], "mode": "off"}}).to_yaml()
    assert "  sizes: [1, 2]\n" in text
    assert "  mode: 'off'\n" in text
    with raises_problem(reason="YAML cannot represent"):
        Experiment({"trainer": {"nested": {"a": object}}}).to_yaml()
