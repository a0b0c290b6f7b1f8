"""Several processes on this machine train one run on JAX: the same curve as one, and the same bits after kills."""

import signal
import time

import numpy as np
import pytest
from tests.several.launched import by_hand, ended, hit, launch, losses, pids, record, start, wait_for
from tests.test_gang import free_port

pytestmark = [pytest.mark.backend, pytest.mark.daily("jax")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One process, and two that are not interrupted."""
    folder = tmp_path_factory.mktemp("runs")
    one, two = start(folder / "one"), launch(folder / "two", 2)
    assert ended(one)[0] == 0
    code, text = ended(two)
    assert code == 0, text
    return folder


def test_two_processes_and_a_kill(runs, tmp_path):
    check_same_curve(runs / "one", runs / "two")
    assert record(runs / "two")["attempts"][0]["processes"] == 2
    interrupted = launch(tmp_path / "killed", 2, restarts=3)
    pid = hit(tmp_path / "killed", interrupted, rank=1)
    check_repaired(interrupted, tmp_path / "killed", runs / "two", f"rank 1 (pid {pid} on", "SIGKILL")


def check_same_curve(one, several):
    assert [step for step, _ in losses(several)] == list(range(10, 201, 10))
    np.testing.assert_allclose([y for _, y in losses(several)], [y for _, y in losses(one)], rtol=1e-5)
    validation = record(one)["metrics"]["validation"]["validation_loss"]
    assert record(several)["metrics"]["validation"]["validation_loss"] == pytest.approx(validation, rel=1e-5)


def check_repaired(process, directory, uninterrupted, *named):
    """The gang was restarted, said why, and ended with the same bits as without the interruption."""
    code, text = ended(process)
    assert code == 0, text
    assert all(name in text for name in named), text
    assert len(record(directory)["attempts"]) > 1
    assert record(directory)["digest"] == record(uninterrupted)["digest"]
    assert losses(directory) == losses(uninterrupted)


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "number", "saving"),
    [(0, signal.SIGKILL, False), (0, signal.SIGKILL, True), (1, signal.SIGKILL, True)],
)
def test_kills(runs, tmp_path, rank, number, saving):
    interrupted = launch(tmp_path / "killed", 2, restarts=3)
    pid = hit(tmp_path / "killed", interrupted, rank, number, saving=saving)
    check_repaired(interrupted, tmp_path / "killed", runs / "two", f"rank {rank} (pid {pid} on", "SIGKILL")


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_frozen_process(runs, tmp_path, rank):
    interrupted = launch(tmp_path / "frozen", 2, restarts=3)
    pid = hit(tmp_path / "frozen", interrupted, rank, signal.SIGSTOP)
    begin = time.monotonic()
    wait_for(lambda: pids(tmp_path / "frozen")[rank] != pid, interrupted)
    assert time.monotonic() - begin < 90, "60 s to name it, and the start of the next attempt"
    check_repaired(interrupted, tmp_path / "frozen", runs / "two", f"rank {rank} (pid {pid} on", "frozen")


@pytest.mark.full
def test_a_stop_requested_of_one_process_and_other_numbers_of_processes(runs, tmp_path):
    """All stop at one common step; the run goes on with one process, then with four, on the curve of one."""
    directory = tmp_path / "stopped"
    two = by_hand(directory, free_port(), 2)
    hit(directory, two[0], rank=1, number=signal.SIGTERM)
    assert [ended(process)[0] for process in two] == [143, 143]
    stopped = record(directory)
    assert stopped["status"] == "interrupted"
    assert str(stopped["step"]) in [path.name for path in (directory / "checkpoints").iterdir()]
    one = start(directory, "trainer.train_steps=150", "--allow-change=trainer.train_steps")
    assert ended(one)[0] == 0
    code, text = ended(launch(directory, 4))
    assert code == 0, text
    assert [attempt["processes"] for attempt in record(directory)["attempts"]] == [2, 1, 4]
    assert record(directory)["attempts"][1]["from_step"] == stopped["step"]
    np.testing.assert_allclose([y for _, y in losses(directory)], [y for _, y in losses(runs / "one")], rtol=1e-5)


@pytest.mark.full
def test_the_same_gang_gives_the_same_bits(runs, tmp_path):
    again = launch(tmp_path / "again", 2)
    code, text = ended(again)
    assert code == 0, text
    assert record(tmp_path / "again")["digest"] == record(runs / "two")["digest"]
    four = launch(tmp_path / "four", 4)
    code, text = ended(four)
    assert code == 0, text
    check_same_curve(runs / "one", tmp_path / "four")


@pytest.mark.full
def test_waiting_for_checkpoints_is_for_one_process(tmp_path):
    code, text = ended(launch(tmp_path / "followed", 2, "--mode=continuous_eval"))
    assert code == 2
    assert text.count("--mode: received 'continuous_eval'") == 1
    assert "start it as one process" in text


@pytest.mark.full
def test_an_elastic_gang_divides_the_batch(tmp_path):
    """With room for 4 processes and batches of 27 samples, 3 are started; the record has the mesh of each attempt."""
    words = ("task.train_data.global_batch_size=27", "trainer.train_steps=40")
    first = launch(tmp_path / "elastic", "2..4", *words, environment={"CUDA_VISIBLE_DEVICES": "a,b,c,d"})
    code, text = ended(first)
    assert code == 0, text
    assert "3 of 4 possible processes are started: a training batch of 27 samples is no multiple of 4" in text
    more = ("task.train_data.global_batch_size=27", "--allow-change=trainer.train_steps")
    code, text = ended(start(tmp_path / "elastic", *more, "trainer.train_steps=60"))
    assert code == 0, text
    assert "from step 40 on, numbers are rounded otherwise: processes: 3 -> 1; mesh: {data: 3} -> {data: 1}" in text
    one, two = record(tmp_path / "elastic")["attempts"]
    assert (one["processes"], one["mesh"], one["sharding"]) == (3, {"data": 3}, "replicated")
    assert (two["from_step"], two["processes"], two["mesh"]) == (40, 1, {"data": 1})
    assert {"key": "processes", "old": 3, "new": 1} in two["changes"]
