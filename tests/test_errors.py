"""Errors as data: what they hold, the sentences made of it, and keys under the names of an entry point."""

import ast
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstep
from everstep.errors import NOTHING, Problem, TrainingError, UsageError, renamed_key, renamed_keys

NAMES = {"trainer.train_steps": "epochs", "trainer.epochs": "epochs", "task.train_data": "train_ds", "task.project": ""}
"""What an entry point calls keys of a configuration."""

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be slow
words = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
keys = st.sampled_from(
    [*NAMES, "task.train_data.repeat", "task.train_data[0].x", "task.project.width", "trainer.other"]
)
texts = st.text(max_size=30)
mentions = st.dictionaries(words, keys, max_size=3)
problems = st.builds(
    Problem, key=keys, reason=texts, origin=texts, received=st.integers(), remedy=texts, mentions=mentions
)


# -- sentences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({}, "is wrong"),
        ({"key": "a.b"}, "a.b: is wrong"),
        ({"key": "a", "received": None}, "a: received None, is wrong"),
        ({"received": 3, "remedy": "use 4"}, "received 3, is wrong: use 4"),
        (
            {"key": "a", "received": 3, "remedy": "use 4", "origin": "f.yaml:2"},
            "a: received 3, is wrong: use 4 (from f.yaml:2)",
        ),
        ({"remedy": "lower {n}", "mentions": {"n": "a.b"}}, "is wrong: lower a.b"),
        ({"remedy": "write {n} or {a.b} or ${a.b}", "mentions": {}}, "is wrong: write {n} or {a.b} or ${a.b}"),
    ],
)
def test_rendering(parts, sentence):
    error = UsageError("is wrong", **parts)
    assert str(error) == sentence
    assert (error.key, error.received, error.origin) == (
        parts.get("key", ""),
        parts.get("received", NOTHING),
        parts.get("origin", ""),
    )


def test_reason_and_remedy_of_an_error_are_filled_in():
    error = TrainingError("{steps} is short", remedy="raise {steps}", mentions={"steps": "trainer.train_steps"})
    assert (error.reason, error.remedy) == ("trainer.train_steps is short", "raise trainer.train_steps")


def test_one_line_per_problem_below_the_owner():
    error = UsageError([Problem("a", "is wrong"), Problem("[0]", "is missing")], owner="MyConfig")
    assert str(error) == "MyConfig.a: is wrong\nMyConfig[0]: is missing"


@unhurried
@given(problems)
def test_errors_can_be_pickled(problem):
    error = TrainingError([problem, problem])
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


# -- the user's names for keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("task.train_data", "train_ds"),
        ("task.train_data.repeat", "train_ds.repeat"),
        ("task.train_data[0].x", "train_ds[0].x"),
        ("task.train_data_2", "task.train_data_2"),
        ("task.project.width", "width"),
        ("my.task.train_data", "my.task.train_data"),
        ("", ""),
    ],
)
def test_the_name_of_a_key(key, name):
    assert renamed_key(key, NAMES) == name


@unhurried
@given(problems)
def test_prose_is_never_searched_for_keys(problem):
    """Whatever a reason or remedy says: only its key and the keys that it mentions are renamed."""
    renamed = problem.renamed(NAMES)
    assert (renamed.reason, renamed.remedy) == (problem.reason, problem.remedy)
    assert (renamed.received, renamed.origin) == (problem.received, problem.origin)
    assert renamed.key == renamed_key(problem.key, NAMES)
    assert renamed.mentions == {name: renamed_key(key, NAMES) for name, key in problem.mentions.items()}


@unhurried
@given(keys, texts.filter(lambda text: "{" not in text), texts.filter(lambda text: "{" not in text))
def test_a_mentioned_key_is_shown_by_the_users_name(key, before, after):
    problem = Problem("", f"{before}{{it}}{after}", remedy=f"{after}{{it}}{before}", mentions={"it": key})
    for names in ({}, NAMES):
        renamed, name = problem.renamed(names), renamed_key(key, names)
        assert renamed.fill(renamed.reason) == f"{before}{name}{after}"
        assert renamed.fill(renamed.remedy) == f"{after}{name}{before}"


@unhurried
@given(problems)
def test_names_are_those_of_the_outermost_entry_point(problem):
    """Renaming twice, from the inside out, is renaming by both tables."""
    outer = {"train_ds": "data", "epochs": "rounds"}
    assert problem.renamed(NAMES).renamed(outer) == problem.renamed(
        {key: renamed_key(name, outer) for key, name in NAMES.items()}
    )


def test_a_block_renames_what_is_raised_in_it():
    with pytest.raises(TrainingError) as failed, renamed_keys(NAMES):
        raise TrainingError("ended", key="task.train_data", remedy="lower {n}", mentions={"n": "trainer.train_steps"})
    assert str(failed.value) == "train_ds: ended: lower epochs"
    assert str(failed.value.__cause__) == "task.train_data: ended: lower trainer.train_steps"


def test_an_error_without_such_keys_is_raised_as_it_is():
    error = UsageError("trainer.epochs is only a word here", key="other")
    with pytest.raises(UsageError) as raised, renamed_keys(NAMES):
        raise error
    assert raised.value is error


# -- every raise site --------------------------------------------------------------------------------------------------

SECTION_KEY = re.compile(r"(?<![\w./{])(?:trainer|task|runtime)\.[a-z]\w*")
WITHOUT_ENTRY_POINT = {
    "cli/resolve.py": "an example of an override",
    "config/overrides.py": "an example of an override",
    "loop/actions/weights.py": "actions are listed in configurations",
    "run/checkpoint_selection.py": "an option of the command line",
    "task/multitask/task.py": "several tasks are trained from configurations",
}
"""Files whose errors only reach users who write these keys themselves, with the reason."""


def raised_texts():
    """Yields file and text of every literal reason and remedy in the package."""
    package = Path(everstep.__file__).parent
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            kind = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if kind in {"UsageError", "TrainingError", "Problem"}:
                place = 1 if kind == "Problem" else 0  # a problem's first argument is its key
                named = [word.value for word in node.keywords if word.arg in ("reason", "remedy")]
                for piece in (piece for part in (*node.args[place : place + 1], *named) for piece in ast.walk(part)):
                    if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
                        yield path.relative_to(package).as_posix(), piece.value


def test_prose_mentions_keys_by_placeholders():
    """A key that is spelled out in a sentence keeps its name, whatever an entry point's users call it."""
    spelled = {
        (file, text) for file, text in raised_texts() if SECTION_KEY.search(text) and file not in WITHOUT_ENTRY_POINT
    }
    assert not spelled, f"use a placeholder and mentions={{…}}: {sorted(spelled)}"
