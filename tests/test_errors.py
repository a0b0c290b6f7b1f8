"""Errors as data: what they hold, the sentences made of it, and keys under the names of an entry point."""

import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.errors import NOTHING, Problem, TrainingError, UsageError, renamed_key, renamed_keys, warning_text

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


CLOSED = {"trainer": None, "trainer.train_steps": "epochs"}
"""Of an entry point in which nothing else of the trainer's section can be set."""


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ({}, "check it, or raise trainer.trials, or lower trainer.train_steps"),
        (NAMES, "check it, or raise trainer.trials, or lower epochs"),
        (CLOSED, "check it, or lower epochs"),
        ({"trainer": None}, "check it"),
    ],
)
def test_alternatives_that_need_a_key_which_users_lack_are_left_out(names, shown):
    mentions = {"trials": "trainer.trials", "steps": "trainer.train_steps"}
    error = TrainingError(
        "failed", key="trainer.x", remedy=("check it", "raise {trials}", "lower {steps}"), mentions=mentions
    )
    renamed = error.problems[0].renamed(names)
    assert renamed.fill(renamed.remedy) == shown
    assert renamed.key == "trainer.x", "a key in an error is what allow_change takes, also where it has no other name"
    assert pickle.loads(pickle.dumps(TrainingError(renamed))).remedy == shown


def test_a_warning_is_in_the_words_of_the_entry_point_that_runs():
    def text():
        return warning_text(
            "ended", remedy=("lower {n}", "set {all}"), mentions={"n": "trainer.train_steps", "all": "trainer.all"}
        )

    assert text() == "ended: lower trainer.train_steps, or set trainer.all"
    with renamed_keys({"epochs": "rounds"}):
        with renamed_keys(CLOSED):
            assert text() == "ended: lower rounds"
        assert text() == "ended: lower trainer.train_steps, or set trainer.all"


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
    assert failed.value.__cause__ is None  # it is told once, with the names that the user knows
    assert failed.value.__suppress_context__


def test_an_error_without_such_keys_is_raised_as_it_is():
    error = UsageError("trainer.epochs is only a word here", key="other")
    with pytest.raises(UsageError) as raised, renamed_keys(NAMES):
        raise error
    assert raised.value is error
