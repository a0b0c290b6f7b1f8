"""Several processes on this machine train one run on JAX: the same curve as one, and the same bits after kills."""

import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from tests.gang.processes import free_port
from tests.several import gang_experiment
from tests.several.launched import by_hand, ended, hit, launch, losses, record, start, wait_for

import everstep

pytestmark = [pytest.mark.backend, pytest.mark.daily("jax"), pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def run_of_one(tmp_path_factory):
    """A run of one process: this one, if it computes with JAX, as every day; that spares a start."""
    directory = tmp_path_factory.mktemp("runs") / "one"
    if keras.backend.backend() != "jax":
        return finished(start, directory)
    params = gang_experiment.small()
    everstep.run_experiment(gang_experiment.GangTask(params.task), params, directory, export=False, verbose=False)
    return directory


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    """A run of two processes that are not interrupted."""
    return finished(launch, tmp_path_factory.mktemp("runs") / "two", 2)


def finished(begin, directory, *arguments):
    code, text = ended(begin(directory, *arguments))
    assert code == 0, text
    return directory


def test_two_processes_and_a_kill(run_of_one, run_of_two, tmp_path):
    check_same_curve(run_of_one, run_of_two)
    assert record(run_of_two)["attempts"][0]["processes"] == 2
    interrupted = launch(tmp_path / "killed", 2, restarts=3)
    pid = hit(tmp_path / "killed", interrupted, rank=1)
    check_repaired(interrupted, tmp_path / "killed", run_of_two, f"rank 1 (pid {pid} on", "SIGKILL")


def check_same_curve(run_of_one, several):
    assert [step for step, _ in losses(several)] == list(range(10, 201, 10))
    np.testing.assert_allclose([y for _, y in losses(several)], [y for _, y in losses(run_of_one)], rtol=1e-5)
    validation = record(run_of_one)["metrics"]["validation"]["validation_loss"]
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
def test_kills(run_of_two, tmp_path, rank, number, saving):
    interrupted = launch(tmp_path / "killed", 2, restarts=3)
    pid = hit(tmp_path / "killed", interrupted, rank, number, saving=saving)
    check_repaired(interrupted, tmp_path / "killed", run_of_two, f"rank {rank} (pid {pid} on", "SIGKILL")


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_frozen_process(run_of_two, tmp_path, rank):
    interrupted = launch(tmp_path / "frozen", 2, restarts=3)
    pid = hit(tmp_path / "frozen", interrupted, rank, signal.SIGSTOP)
    begin = time.monotonic()
    log = Path(interrupted.log.name)
    wait_for(lambda: f"rank {rank} (pid {pid} on" in log.read_text(), interrupted)
    assert time.monotonic() - begin < 60
    check_repaired(interrupted, tmp_path / "frozen", run_of_two, f"rank {rank} (pid {pid} on", "frozen")


@pytest.mark.full
def test_a_stop_requested_of_one_process_and_other_numbers_of_processes(run_of_one, tmp_path):
    """All stop at one common step; the run goes on with one process, then with four, on the curve of one."""
    directory = tmp_path / "stopped"
    both = by_hand(directory, free_port(), 2)
    hit(directory, both[0], rank=1, number=signal.SIGTERM)
    done = [ended(process) for process in both]
    assert [code for code, _ in done] == [143, 143], done
    stopped = record(directory)
    assert stopped["status"] == "interrupted"
    assert str(stopped["step"]) in [path.name for path in (directory / "checkpoints").iterdir()]
    alone = start(directory, "trainer.train_steps=150", "--allow-change=trainer.train_steps")
    assert ended(alone)[0] == 0
    code, text = ended(launch(directory, 4))
    assert code == 0, text
    assert [attempt["processes"] for attempt in record(directory)["attempts"]] == [2, 1, 4]
    assert record(directory)["attempts"][1]["from_step"] == stopped["step"]
    np.testing.assert_allclose([y for _, y in losses(directory)], [y for _, y in losses(run_of_one)], rtol=1e-5)


@pytest.mark.full
def test_the_same_gang_gives_the_same_bits(run_of_one, run_of_two, tmp_path):
    again = launch(tmp_path / "again", 2)
    code, text = ended(again)
    assert code == 0, text
    assert record(tmp_path / "again")["digest"] == record(run_of_two)["digest"]
    four = launch(tmp_path / "four", 4)
    code, text = ended(four)
    assert code == 0, text
    check_same_curve(run_of_one, tmp_path / "four")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning")
def test_a_killed_gang_is_one_run(run_of_two, tmp_path):
    """For MLflow, in `run.json` and in the history."""
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    words = ("trainer.tracking.mlflow=true", f"trainer.tracking.mlflow_uri={store}")
    interrupted = launch(tmp_path / "killed", 2, *words, restarts=3)
    pid = hit(tmp_path / "killed", interrupted, rank=0)
    check_repaired(interrupted, tmp_path / "killed", run_of_two, f"rank 0 (pid {pid} on")
    client = mlflow.MlflowClient(store)
    experiments = [one.experiment_id for one in client.search_experiments()]
    (tracked,) = client.search_runs(experiments)
    assert tracked.info.status == "FINISHED"
    points = client.get_metric_history(tracked.info.run_id, "training_loss")
    assert [point.step for point in points] == list(range(10, 201, 10))
    assert len(list(tmp_path.rglob("run.json"))) == len(list(tmp_path.rglob("history.csv"))) == 1


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
