"""Config files: what is read, and what is refused with its line."""

import math
import pathlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.config import dialect, load_file
from everstep.testing.problems import raises_problem

from .config_samples import write_config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("12", 12),
        ("-3", -3),
        ("007", 7),
        ("0x1f", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("off", "off"),
        ("no", "no"),
        ("yes", "yes"),
        ("On", "On"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("None", None),
        ("12:30", "12:30"),
        ("2020-01-01", "2020-01-01"),
        ("1_000", "1_000"),
        ("a b", "a b"),
    ],
)
def test_plain_values(text: str, value: Any):
    assert dialect.load(text) == value
    assert dialect.plain(text) == value
    assert type(dialect.load(text)) is type(value)
    assert dialect.load(f"- {text}\n") == [value]


leaf = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@settings(max_examples=150, deadline=None)
@given(trees)
def test_what_is_written_is_read_back(tree: Any):
    assert dialect.load(dialect.dump(tree)) == tree


def test_files_of_every_kind(tmp_path: pathlib.Path):
    assert load_file(write_config(tmp_path, "trainer: {rate: 1e-3}")) == {"trainer": {"rate": 1e-3}}
    assert load_file(write_config(tmp_path, '{"trainer": {"rate": 1e-3}}', "c.json")) == {"trainer": {"rate": 1e-3}}
    assert load_file(write_config(tmp_path, "[trainer]\nrate = 1e-3\n", "c.toml")) == {"trainer": {"rate": 1e-3}}


@pytest.mark.parametrize("name", ["c.yaml", "c.json", "c.toml"])
def test_an_empty_file_has_no_values(tmp_path: pathlib.Path, name: str):
    assert load_file(write_config(tmp_path, "", name)) == {}
    assert load_file(write_config(tmp_path, "# only this\n")) == {}


@pytest.mark.parametrize(
    ("name", "text", "place", "reason"),
    [
        ("c.yaml", "a: 1\nb: [1,\n", ", line 3", "<stream end>"),
        ("c.yaml", "a: 1\nb: 2\na: 3\n", ", line 3", "'a' is given twice"),
        ("c.yaml", "t:\n  a: 1\n  a: 1\n", ", line 3", "'a' is given twice"),
        ("c.yaml", "a: !!python/object/apply:os.getcwd []\n", ", line 1", "os.getcwd"),
        ("c.yaml", "a: &x {b: *x}\n", ", line 1", "cannot hold itself"),
        ("c.yaml", "a: 1\n---\nb: 1\n", ", line 2", "another document"),
        ("c.yaml", "- 1\n", "", "expected keys with values"),
        ("c.yaml", "a: \x01\n", "", "not allowed"),
        ("c.json", '{"a": 1,\n}', ", line 2", "property name"),
        ("c.json", '{"a": 1, "a": 2}', "", "'a' is given twice"),
        ("c.toml", "a = 1\nb = \n", "", "line 2"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path: pathlib.Path, name: str, text: str, place: str, reason: str):
    path = write_config(tmp_path, text, name)
    with raises_problem(key=f"{path}{place}", reason=reason):
        load_file(path)


def test_files_that_cannot_be_read(tmp_path: pathlib.Path):
    with raises_problem(key=f"config file {tmp_path / 'no.yaml'}", reason="does not exist"):
        load_file(tmp_path / "no.yaml")
    with raises_problem(reason="is a directory"):
        load_file(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff\xfe")
    with raises_problem(reason="not UTF-8"):
        load_file(tmp_path / "bytes.yaml")


def test_merge_keys_work_and_are_no_repetition(tmp_path: pathlib.Path):
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, y: 4}\n"
    tree = load_file(write_config(tmp_path, text))
    assert tree == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 3, "y": 4}}
