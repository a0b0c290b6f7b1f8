"""How a script ends that has not caught an error."""

import os
import subprocess
import sys

import pytest

from everstep.errors import UsageError
from everstep.run import uncaught
from everstep.run.signals import Interrupted, as_python_interrupts

pytestmark = pytest.mark.slow  # it starts processes

SCRIPT = """
import everstep.run
everstep.run.shorten_uncaught_errors()
{}
"""


def ended(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(code)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return done.returncode, done.stderr


def test_bad_input():
    code = 'from everstep import UsageError; raise UsageError("must be at least 1", key="epochs", received=0)'
    assert ended(code) == (1, "everstep: error: epochs: received 0, must be at least 1\n")
    assert "Traceback" in ended(code, EVERSTEP_TRACEBACK="1")[1]


def test_where_it_was_called(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format('from everstep import UsageError\nraise UsageError("no")'))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stderr == f"everstep: error: no\n  {script}, line 5\n"


def test_other_errors_have_their_traceback():
    status, text = ended('raise ValueError("mine")')
    assert status == 1
    assert text.startswith("Traceback")


def test_another_hook_stays():
    code = 'sys.excepthook = lambda *error: print("theirs", file=sys.stderr)\neverstep.run.shorten_uncaught_errors()'
    script = f"import sys, everstep.run\n{code}\nraise everstep.UsageError('no')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr == "theirs\n"


def interruption(announced):
    stop = Interrupted("SIGINT", 130)
    stop.saved, stop.announced = 58, announced
    with pytest.raises(KeyboardInterrupt) as caught, as_python_interrupts():
        raise stop
    return caught.value


@pytest.mark.parametrize("announced", [False, True])
def test_ctrl_c_is_one_line_once(capsys, announced):
    uncaught._show(KeyboardInterrupt, interruption(announced), None)
    text = "everstep: SIGINT: the state is saved at step 58; the same command resumes from there\n"
    assert capsys.readouterr().err == ("" if announced else text)


def test_any_other_ctrl_c_has_its_traceback(capsys):
    uncaught._show(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert "KeyboardInterrupt" in capsys.readouterr().err


def test_an_error_with_a_cause(capsys):
    error = UsageError("cannot be read")
    error.__cause__ = OSError("gone")
    uncaught._show(UsageError, error, None)
    assert capsys.readouterr().err == "everstep: error: cannot be read\n"
