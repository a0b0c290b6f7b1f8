"""The search for the largest batch, and the subprocesses that try one size."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

from everstep.errors import TrainingError, UsageError
from everstep.testing.problems import raises_problem
from everstep.tuner.batch_size import (
    Tried,
    fastest,
    free_bytes,
    is_out_of_memory,
    largest,
    run_limited,
    says_out_of_memory,
    search,
    try_in_subprocess,
)

pytestmark = pytest.mark.slow

MEGABYTE = 2**20


def sizes(start, most, room, samples=None):
    """Returns the sizes that are tried where `room` samples fit."""
    return [one.size for one in search(start, most, lambda size: Tried(size, size <= room, samples=samples))]


@pytest.mark.parametrize(
    ("start", "most", "room", "tried"),
    [
        (32, 1000, 200, [32, 64, 128, 256, 192, 224, 208, 200]),
        (32, 100, 10**6, [32, 64, 100]),
        (64, 64, 10**6, [64]),
        (32, 1000, 5, [32, 16, 8, 4, 6, 5]),
        (32, 1000, 0, [32, 16, 8, 4, 2, 1]),
        (1, 8, 3, [1, 2, 4, 3]),
    ],
)
def test_doubles_then_narrows(start, most, room, tried):
    assert sizes(start, most, room) == tried


@pytest.mark.parametrize("room", [*range(1, 70), 999, 5000])
def test_finds_the_largest_to_a_sixteenth(room):
    found = max(size for size in sizes(16, 10**5, room) if size <= room)
    assert found <= room <= found + 1 + found // 16


def test_no_batch_is_larger_than_the_data():
    assert sizes(32, 10**5, 10**6, samples=90) == [32, 64, 90]


def test_largest_and_fastest():
    tries = [Tried(8, True, 100.0), Tried(16, True, 180.0), Tried(32, True, 170.0), Tried(64, False)]
    assert (largest(tries).size, fastest(tries).size) == (32, 16)
    assert largest([Tried(8, False)]) is fastest([Tried(8, False)]) is None


class ResourceExhaustedError(Exception):
    """As TensorFlow calls it."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ResourceExhaustedError("Graph execution error"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried …"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        ValueError("OOM when allocating tensor with shape[100000,4096]"),
    ],
)
def test_out_of_memory_is_recognised(error):
    assert is_out_of_memory(error)
    outer = TrainingError("after step 2: it failed")
    outer.__cause__ = error
    assert is_out_of_memory(outer)


def test_other_errors_are_not_out_of_memory():
    for error in (ValueError("shapes (3, 4) and (5, 6) do not fit"), KeyError("memory"), UsageError("no such file")):
        assert not is_out_of_memory(error)
    assert not says_out_of_memory("allocated 3 workers")


# -- real processes --------------------------------------------------------------------------------------------------


def program(text):
    return [sys.executable, "-S", "-c", textwrap.dedent(text)]


def is_alive(pid):
    stat = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(stat) and not stat.startswith("Z")


def wait_for_end(pid):
    """Waits until a process is gone, which takes a moment after its signal."""
    until = time.monotonic() + 300
    while is_alive(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_output_of_a_process():
    ended = run_limited(program("import sys; print('yes'); print('no', file=sys.stderr); sys.exit(3)"), None)
    assert (ended.code, ended.out, ended.err, ended.over_limit) == (3, "yes\n", "no\n", False)


@pytest.mark.skipif(free_bytes() is None, reason="this system does not report the memory of processes")
def test_a_process_over_the_limit_is_ended(tmp_path):
    """The processes it has started count, and are ended as well."""
    taking = f"""
        import os, pathlib, subprocess, sys, time
        code = "import time; held = b'x' * {300 * MEGABYTE}; time.sleep(600)"
        other = subprocess.Popen([sys.executable, "-S", "-c", code])
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(other.pid))
        time.sleep(600)
    """
    ended = run_limited(program(taking), 200 * MEGABYTE)
    assert ended.over_limit
    assert ended.code == -signal.SIGKILL, "it did not end by itself"
    wait_for_end(int((tmp_path / "pid").read_text()))


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    text = "import os, signal, tempfile; print(tempfile.mkdtemp(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    ended = run_limited(program(text), None)
    assert ended.out.startswith(f"{tmp_path}/everstep-tune-")
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_the_process(tmp_path):
    path = tmp_path / "pid"
    waiting = f"import os, pathlib, time; pathlib.Path({str(path)!r}).write_text(str(os.getpid())); time.sleep(600)"

    def alarm(number, frame):
        if path.is_file() and path.read_text():  # else it has not begun yet
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_limited(program(waiting), None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not is_alive(int(path.read_text()))


def tried(text, max_bytes=None):
    return try_in_subprocess(64, program(text), max_bytes)


def test_the_result_of_a_try():
    wanted = Tried(64, True, 12.5, 10**9, 10**9, 128)
    text = f"print('a line of the user'); print({wanted.to_line()!r}); print('and another')"
    assert tried(text) == tried(text, 10**9) == wanted
    assert tried(text, 10**9 - 1) == Tried(64, False, note="took more than 1.00 GB of memory")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed, as the system does"),
        ('import os; os.write(2, b"what():  std::bad_alloc\\nmore\\n"); os.abort()', "more"),
        ("raise MemoryError('Unable to allocate 8.00 GiB for an array')", "MemoryError: Unable to allocate 8.00 GiB"),
    ],
)
def test_a_try_that_runs_out_of_memory_does_not_fit(text, note):
    found = tried(text)
    assert not found.fits
    assert found.note.startswith(note)


def test_a_try_over_the_limit_does_not_fit():
    if os.name != "posix" or free_bytes() is None:
        pytest.skip("this system does not report the memory of processes")
    found = tried(f"import time; held = b'x' * {300 * MEGABYTE}; time.sleep(600)", 10**8)
    assert (found.fits, found.note) == (False, "took more than 0.10 GB of memory")


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("import sys; sys.exit('everstep: error: no such file')", TrainingError, "^no such file"),
        (
            "import os, sys; print('everstep: error: trainer.x: no such key', file=sys.stderr); os._exit(2)",
            UsageError,
            "^trainer.x: no such key",
        ),
        ("raise KeyError('loss')", TrainingError, "^ended with exit code 1, but not for lack of memory"),
        ("import os; os.abort()", TrainingError, "^ended with signal SIGABRT, but not for lack of memory"),
    ],
)
def test_other_failures_end_the_search(text, kind, reason, capfd):
    with raises_problem(kind, key="batch size 64", reason=reason):
        tried(text)
    assert ("KeyError: 'loss'" in capfd.readouterr().err) == ("KeyError" in text)
