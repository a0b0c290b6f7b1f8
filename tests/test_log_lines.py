"""Lines on standard error are messages alone, although absl gives the root logger a handler with its first record."""

import logging

import absl.logging
import pytest

from everstep.errors import UsageError
from everstep.frontends.verbose import log_output
from everstep.log_lines import handlers_kept, print_plain_lines

logger = logging.getLogger("everstep.something")


@pytest.fixture
def bare_root(monkeypatch):
    """Returns a function that removes the handlers of the root logger; pytest adds some when the test begins."""

    def remove():
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        return logging.getLogger()

    return remove


def test_no_prefix_and_no_colour_although_absl_has_logged(bare_root, capsys):
    root = bare_root()
    with handlers_kept():
        absl.logging.warning("of another package")
        logger.warning("the shape \x1b[1m(8, 4)\x1b[0m is wrong")
    assert capsys.readouterr().err == "of another package\nthe shape (8, 4) is wrong\n"
    assert root.handlers == []


def test_a_process_of_the_command_line_prints_plain_lines_for_good(bare_root, capsys):
    bare_root()
    print_plain_lines()
    print_plain_lines()
    absl.logging.warning("of another package")
    logger.warning("%d steps", 3)
    logger.info("not shown")
    assert capsys.readouterr().err == "of another package\n3 steps\n"


def test_silent_stays_silent(bare_root, capsys):
    bare_root()
    with handlers_kept(), log_output(False):
        logger.warning("nobody has asked for it")
    assert capsys.readouterr().err == ""


def test_handlers_of_the_program_are_left_alone(bare_root, capsys):
    root = bare_root()
    own = logging.NullHandler()
    root.addHandler(own)
    with handlers_kept():
        print_plain_lines()
        logger.warning("for the program's own handler")
    assert root.handlers == [own]
    assert capsys.readouterr().err == ""


def test_errors_have_no_colours():
    assert str(UsageError("expected \x1b[1m(8, 4)\x1b[0m")) == "expected (8, 4)"
