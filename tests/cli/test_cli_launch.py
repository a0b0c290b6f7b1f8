"""`everstep launch`, as a user types it."""

import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_command_is_run_with_its_own_options_and_restarted(shell: Any, tmp_path: Any) -> None:
    script = "import os, sys; print(sys.argv[1:]); os.mkdir('once'); sys.exit(3)"
    outcome = shell("launch", "--max_restarts=1", "--backoff", "0.01", "--", sys.executable, "-c", script, "--a_b=1")
    assert outcome.code == 1, "it cannot create the directory twice"
    assert outcome.out == "['--a_b=1']\n['--a_b=1']\n"
    assert "everstep: the command ended with exit code 3; restart 1 of 1 in 0.01 s" in outcome.err
    assert "everstep: giving up: the limit of 1 restarts (--max-restarts) is reached" in outcome.err
    assert "  | FileExistsError" in outcome.err


def test_the_exit_code_is_that_of_the_command(everstep: Any) -> None:
    assert everstep("launch", "--", sys.executable, "-c", "raise SystemExit(2)").code == 2
    assert everstep("launch", "true").code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "Missing argument"),
        (["--max-restarts", "some", "--", "true"], "Invalid value for '--max-restarts'"),
        (["--max-restarts=-1", "--", "true"], "--max-restarts: received -1, must be 0 or more"),
        (["--backoff=inf", "--", "true"], "--backoff: received inf"),
        (
            ["--", "no-such-program"],
            "COMMAND: received 'no-such-program', cannot be started: No such file",
        ),
        (["python", "--flag"], "No such option: --flag"),
    ],
)
def test_bad_requests(everstep: Any, words: list[str], error: str) -> None:
    outcome = everstep("launch", *words)
    assert outcome.code == 2
    assert error in outcome.err
    assert outcome.err.count("\n") == 1
