"""What a test starts with `forked` is a process like one of `subprocess`, whose imports are done."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.children import forked

pytestmark = pytest.mark.slow

ABOUT = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "directory": os.getcwd(),
    "variable": os.environ.get("A_VARIABLE"), "others": os.environ.get("ANOTHER"), "input": sys.stdin.read(),
    "imported": "keras" in sys.modules, "name": __name__, "first": sys.path[0],
}))
print("to the end", file=sys.stderr)
sys.exit(3)
"""
OUTPUT = {"capture_output": True, "text": True}
PIPES = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.PIPE}


@pytest.mark.parametrize("start", [pytest.param("-c", marks=pytest.mark.full), "script", "-m"])
def test_it_finds_what_any_process_finds(tmp_path, monkeypatch, start):
    monkeypatch.setenv("ANOTHER", "of the test")
    (tmp_path / "about.py").write_text(ABOUT)
    words = {"-c": ["-c", ABOUT], "script": [str(tmp_path / "about.py")], "-m": ["-m", "about"]}[start]
    environment = {name: value for name, value in os.environ.items() if name != "ANOTHER"} | {"A_VARIABLE": "1"}
    found = []
    for popen in (subprocess.Popen, forked.Popen):
        options = {**PIPES, "cwd": tmp_path, "env": environment, "start_new_session": True}
        with popen([sys.executable, *words, "a", "b c"], **options) as process:
            out, err = process.communicate("typed")
        about = json.loads(out)
        assert process.returncode == 3, err
        assert err.splitlines()[-1] == "to the end"
        assert (about.pop("pid"), about.pop("parent"), about.pop("session")) == (process.pid, os.getpid(), process.pid)
        found.append(about)
    usual, ours = found
    assert (usual.pop("imported"), ours.pop("imported")) == (False, True)
    assert ours == usual
    assert ours["others"] is None


def test_it_dies_by_a_signal():
    command = [sys.executable, "-c", "import signal; print(0, flush=True); signal.pause()"]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_an_error_is_one():
    done = forked.run([sys.executable, "-c", "import atexit; atexit.register(print, 'last'); 1 / 0"], **OUTPUT)
    assert (done.returncode, done.stdout) == (1, "last\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_threads_start_them_at_once():
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda n: forked.run([sys.executable, "-c", f"print({n})"], **OUTPUT), range(3)))
    assert [one.stdout for one in done] == [f"{n}\n" for n in range(3)]


def test_what_takes_too_long_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.1)
