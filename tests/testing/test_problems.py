import pytest

from everstep.errors import Problem, TrainingError, UsageError
from everstep.testing.problems import raises_problem

PROBLEM = {"key": "epochs", "received": 0, "remedy": "ask for 3 or more", "origin": "a.yaml:2"}


@pytest.mark.parametrize("fields", [{}, *({name: value} for name, value in PROBLEM.items()), PROBLEM])
def test_an_error_with_these_fields(fields):
    with raises_problem(**fields) as error:
        raise UsageError("must be at least 1", **PROBLEM)
    assert error.value.key == "epochs"


@pytest.mark.parametrize(
    "fields",
    [{"key": "epoch"}, {"received": 1}, {"received": False}, {"reason": "most"}, {"remedy": "less"}, {"origin": ""}],
)
def test_an_error_with_other_fields_is_a_failure(fields):
    with pytest.raises(AssertionError, match="no problem has these fields"), raises_problem(**fields):
        raise UsageError("must be at least 1", **PROBLEM)


def test_one_problem_must_have_all_of_them():
    problems = [Problem("a", "is wrong", received=1), Problem("b", "is wrong", received=2)]
    with raises_problem(TrainingError, key="b", received=2):
        raise TrainingError(problems)
    with pytest.raises(AssertionError), raises_problem(TrainingError, key="b", received=1):
        raise TrainingError(problems)


def test_an_error_of_another_kind_is_a_failure():
    with pytest.raises(TrainingError), raises_problem(key="epochs"):
        raise TrainingError("failed", key="epochs")


def test_no_error_is_a_failure():
    with pytest.raises(pytest.fail.Exception), raises_problem(key="epochs"):
        pass
