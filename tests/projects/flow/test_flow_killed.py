"""The project's own program, called from elsewhere, and killed: the same command resumes, with the same weights."""

import os
import signal
import subprocess
import sys

import keras
import pytest

from everstep.projects.flow.program import main
from everstep.run.record import read

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

KILLED = ("Numbers_B.validation_split=0.25", "Numbers_B.seed=7", "Numbers_B.killed_in=3")


def program(project, cwd, *words):
    env = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    command = [sys.executable, str(project / "train.py"), "--task", "Numbers_B", *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)


def call(project, words, capsys):
    """Calls the program in this process; returns exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--project", str(project)])
    return ended.value.code, *capsys.readouterr()


@pytest.mark.full
def test_killed_in_the_middle_it_goes_on_to_the_same_weights(finished, project, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = program(project, elsewhere, *KILLED)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "Numbers_B <- Numbers_A <- FlowTask" in done.stderr
    assert list(elsewhere.iterdir()) == []
    (directory,) = (project / "runs").iterdir()
    before = read(directory)
    assert (before["status"], before["flow"]["complete"], before["step"]) == ("running", False, 10)

    code, out, _ = call(project, ("--task", "Numbers_B", *KILLED), capsys)
    assert code == 0
    *metrics, last = out.splitlines()
    assert [line.split("  ")[0] for line in metrics] == ["test acc", "test loss"]
    assert last.split() == ["run", str(directory)], "as everstep flow ends"
    resumed = read(directory)
    first, second = resumed["attempts"]
    assert (first["reason"], first["from_step"]) == ("killed", 0)
    assert second["from_step"] in (5, 10)  # the state of the second epoch may have been on its way to the disk
    assert resumed["weights_digest"] == read(finished.directory)["weights_digest"]
    assert resumed["metrics"]["test"] == read(finished.directory)["metrics"]["test"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--task", "Numbers_B", "Numbers_B.epohc=1"), "did you mean 'epoch'"),
        (("Numbers_B",), "received 'Numbers_B', expected KEY=VALUE: a task is an option: --task Numbers_B"),
        (("--task", "Nubers_B"), "task: received 'Nubers_B', there is no such task"),
        (("--tsak", "Numbers_B"), "unrecognized arguments: --tsak: did you mean '--task'?"),
        (("--task", "Numbers_B", "--lr", "5"), "a value is written without dashes: optimizer.learning_rate=…"),
        (("--task", "Numbers_B", "Numbers_B.epoch"), "Numbers_B.epoch"),
        (("--task", "Numbers_B", "--epochs", "5"), "a value is written without dashes: TASK.epoch=…; see --help"),
        (("--task", "Numbers_B", "--backend", "theano"), "received 'theano', unknown backend"),
    ],
)
def test_bad_input_is_one_line(project, capsys, words, message):
    code, out, err = call(project, words, capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (project / "runs").exists()
