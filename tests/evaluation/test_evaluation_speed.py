"""Speed and memory of the evaluator, measured briefly; `python -m benchmarks evaluation` measures at length."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from benchmarks import evaluation

from everstep.evaluation import Accuracy, CrossEntropy, TopK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_rows_per_second():
    """Counts processor time, so that the load of the machine does not matter."""
    batch = evaluation.measure([CrossEntropy(), Accuracy(), TopK(3)], 20_000)
    point = evaluation.measure(evaluation.points(), 4_000)
    print(batch, point)
    assert batch.rows_per_cpu_second > 20_000
    assert point.rows_per_cpu_second > 2_000


@pytest.mark.full
@pytest.mark.backend
def test_a_million_rows_in_the_same_memory(tmp_path):
    results = tmp_path / "evaluation.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "evaluation", "--large", "--json", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    print(done.stdout)
    notes = [case["notes"] for case in json.loads(results.read_text("utf-8"))["cases"]]
    rates = [note["rows per second of processor time"] for note in notes]
    assert [rate > floor for rate, floor in zip(rates, (20_000, 2_000, 400), strict=True)] == [True] * 3
    assert all(note["MB over the first batch"] <= 500 for note in notes)


KILLED = """
    import sys, time
    from benchmarks.evaluation import batches
    from everstep.evaluation import Accuracy, Evaluator

    def slowly():
        for batch in batches(2_000):
            yield batch
            time.sleep(float(sys.argv[2]))
            print("batch", flush=True)

    Evaluator([Accuracy()]).run(slowly(), sys.argv[1], "test")
"""


def test_a_kill_leaves_the_old_files_and_a_rerun_gives_the_same(tmp_path):
    run = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)]
    subprocess.run([*run, "0"], check=True, cwd=ROOT, capture_output=True, timeout=600)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    process = subprocess.Popen([*run, "100"], cwd=ROOT, stdout=subprocess.PIPE)
    while len(list(tmp_path.iterdir())) < len(before) + 2:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    subprocess.run([*run, "0"], check=True, cwd=ROOT, capture_output=True, timeout=600)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
