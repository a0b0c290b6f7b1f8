"""The error that a program has reported, found again in what it wrote."""

import pytest

from everstep.errors import TrainingError, UsageError
from everstep.run.exit_codes import exit_code, reported_error, run_program


def undefined(number):
    return 1 / (number - 1)


def failed():
    try:
        undefined(1)
    except ZeroDivisionError as error:
        return error


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (failed(), "ZeroDivisionError: division by zero"),
        (UsageError("is wrong", key="a.b", received=1), "a.b: received 1, is wrong"),
        (TrainingError("the loss is not finite"), "the loss is not finite"),
    ],
)
def test_the_reported_error_is_found_below_and_above_other_lines(error, reported, capsys):
    exit_code(error)
    lines = ["epoch 1", *capsys.readouterr().err.splitlines(), ""]
    assert reported_error(lines) == reported


def test_without_a_reported_error_it_is_the_last_line_that_says_something():
    assert reported_error(["epoch 1", "Killed", "   ~~~^^^^", ""]) == "Killed"
    assert reported_error([]) == ""


def test_a_program_ends_with_an_exit_code_and_tells_no_secret_of_its_command_line(capsys):
    def refused():
        raise UsageError("is wrong", key="task.server", received="hunter2-hunter2")

    assert [run_program(lambda: None), run_program(lambda: 143)] == [0, 143]
    assert run_program(refused, ["task.password=hunter2-hunter2"]) == 2
    shown = capsys.readouterr().err
    assert "task.server: received" in shown
    assert "hunter2-hunter2" not in shown
