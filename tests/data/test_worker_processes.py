"""Worker processes: the same batches through shared memory, and none that outlives the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.data.images.image_files import write_folder

from everstep.data import worker_processes
from everstep.data.images import ImageDataConfig
from everstep.data.images.stream import PieceLoader
from everstep.data.images.transforms import Transform
from everstep.data.worker_processes import Processes
from everstep.errors import TrainingError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from everstep.data import make_stream
from everstep.data.images import ImageDataConfig, ImageSource

params = ImageDataConfig(input_path=sys.argv[1], size=8, global_batch_size=4, workers=2)
stream = make_stream(ImageSource(params), params, training=True, seed=0)
next(stream)
print(*(member.process.pid for member in stream._processes._members), flush=True)
{then}
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("images") / "photos", 24, height=9, width=9)
    return sorted(str(path) for path in Path(folder).rglob("*.png"))


def jobs(paths, size=3):
    pieces = [list(range(start, start + size)) for start in range(0, len(paths), size)]
    return [(place, (0, piece, [(paths[n], n) for n in piece])) for place, piece in enumerate(pieces)]


@pytest.fixture(scope="module")
def processes():
    """Two processes that prepare images, which all tests share."""
    loader = PieceLoader(Transform.of(ImageDataConfig(size=8)), 0, training=False)
    started = Processes(loader, 2, 4, seeded=False, import_program=False)
    yield started
    started.close()


def labels(batches):
    return [batch[1].tolist() for batch in batches]


def test_batches_come_in_order_and_stay_as_they_are(paths, processes):
    """Also after the memory through which they came was used again."""
    loader = processes._dataset
    found = list(processes.map(jobs(paths)))
    for (images, numbers), (_, job) in zip(found, jobs(paths), strict=True):
        expected = loader[job]
        np.testing.assert_array_equal(images, expected[0])
        np.testing.assert_array_equal(numbers, expected[1])


def test_what_an_abandoned_iterator_had_asked_for_is_dropped(paths, processes):
    expected = [job[1] for _, job in jobs(paths)]
    for taken in (1, 2, 3):
        left = processes.map(jobs(paths))
        assert labels(next(left) for _ in range(taken)) == expected[:taken]
        left.close()
    assert labels(processes.map(jobs(paths))) == expected


def test_an_error_has_the_traceback_of_the_process(processes):
    with pytest.raises(TypeError) as error:
        next(processes.map([(0, 3)]))
    assert "in __getitem__" in str(error.value.__cause__)


def test_a_killed_process_is_reported_and_others_are_started(paths):
    loader = PieceLoader(Transform.of(ImageDataConfig(size=8)), 0, training=False)
    started = Processes(loader, 2, 4, seeded=False, import_program=False)
    batches = started.map(jobs(paths))
    next(batches)
    pids = [member.process.pid for member in started._members]
    os.kill(pids[0], signal.SIGKILL)
    with raises_problem(TrainingError, reason="a worker process of PieceLoader has ended"):
        list(batches)
    assert started.broken
    assert not any(map(is_alive, pids))


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


@pytest.mark.parametrize("end", ["killed", "done", "failed", "killed with a fork"])
def test_no_process_outlives_its_program(paths, end):
    """The program is not guarded by `if __name__ == "__main__":`: these processes do not import it."""
    then = {
        "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "done": "",
        "failed": "raise SystemExit(3)",
        # The fork has copies of the pipes, so they do not end with the program.
        "killed with a fork": "import os, signal, time\n"
        "if os.fork() == 0: os.closerange(0, 3); time.sleep(20); os._exit(0)\nos.kill(os.getpid(), signal.SIGKILL)",
    }[end]
    command = [sys.executable, "-W", "error", "-c", PROGRAM.format(then=then), str(Path(paths[0]).parents[1])]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == {"done": 0, "failed": 3}.get(end, -signal.SIGKILL), found.stderr
    pids = list(map(int, found.stdout.split()))
    assert len(pids) == 2
    until = time.monotonic() + 30
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_results_that_do_not_fit_are_sent_through_the_pipe(monkeypatch):
    monkeypatch.setattr(worker_processes, "_SLOT", 4096)
    with worker_processes._shared_memory(2) as memory:
        small, large = (worker_processes._packed(np.arange(size), memory, 1) for size in (10, 1000))
    assert small.sizes == [80]
    assert len(small.pickled) < 300
    np.testing.assert_array_equal(np.frombuffer(memory.read(1, [80])[0], np.int64), np.arange(10))
    assert large.sizes == []
    assert len(large.pickled) > 8000
