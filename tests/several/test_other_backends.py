"""`everstep launch` on TensorFlow and PyTorch: kills do not change the bits, other numbers continue a run."""

import importlib.util
import signal

import pytest
from tests.several.launched import ended, hit, launch, losses, record, start
from tests.several.test_several_processes import check_repaired

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1200),
    pytest.mark.parametrize(
        "backend",
        [
            pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason="not installed"))
            for name in ("tensorflow", "torch")
        ],
    ),
]


def test_kills_do_not_change_the_bits(backend, tmp_path):
    words = f"--backend={backend}"
    code, text = ended(launch(tmp_path / "two", 2, words))
    assert code == 0, text
    assert [step for step, _ in losses(tmp_path / "two")] == list(range(10, 201, 10))
    for rank, number in ((1, signal.SIGKILL), (0, signal.SIGKILL)):
        directory = tmp_path / f"killed-{rank}"
        interrupted = launch(directory, 2, words, restarts=3)
        pid = hit(directory, interrupted, rank, number)
        check_repaired(interrupted, directory, tmp_path / "two", f"rank {rank} (pid {pid} on")


def test_a_run_continues_with_other_numbers_of_processes(backend, tmp_path):
    words = (f"--backend={backend}", "--allow-change=trainer.train_steps")
    for size, steps in ((2, 60), (1, 120), (4, 200)):
        last = f"trainer.train_steps={steps}"
        run = launch(tmp_path / "run", size, last, *words) if size > 1 else start(tmp_path / "run", last, *words)
        code, text = ended(run)
        assert code == 0, text
    assert [attempt["processes"] for attempt in record(tmp_path / "run")["attempts"]] == [2, 1, 4]
    assert [step for step, _ in losses(tmp_path / "run")] == list(range(10, 201, 10))
