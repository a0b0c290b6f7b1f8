"""Where a sweep shows up: on Slurm, on Ray, in the list of runs, on MLflow."""

import sys

import pytest

from everstep.submit.slurm import Resources
from everstep.sweeps import clusters, executors
from everstep.sweeps.listing import find_sweeps, read_sweep
from everstep.tracking.sweep_tags import SWEEP, TRIAL, sweep_tags, trial_name

pytestmark = pytest.mark.slow


def test_workers_on_slurm_are_an_array(tmp_path):
    text = clusters.slurm_text(tmp_path / "my sweep", 4, ["trainer.train_steps=9"], Resources("v100", 1.5, 1024, 2))
    lines = text.splitlines()
    assert "#SBATCH --array=0-3" in lines
    assert "#SBATCH --job-name=my_sweep" in lines
    assert "#SBATCH --gres=gpu:v100:1" in lines
    assert "#SBATCH --requeue" in lines
    assert "#SBATCH --signal=B:USR1@120" in lines
    command = f"exec {sys.executable} -m everstep.sweeps.worker '{tmp_path / 'my sweep'}' --no-wait"
    assert lines[-1] == f"{command} --longer trainer.train_steps=9"


def test_workers_share_gpus(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    taken = [executors.device_environment(worker, 3, ["4", "7"])["CUDA_VISIBLE_DEVICES"] for worker in range(3)]
    assert taken == ["4", "7", "4"]
    assert executors.device_environment(0, 3, ["4", "7"])["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.45"
    assert "CUDA_VISIBLE_DEVICES" not in executors.device_environment(0, 2, ["0"])
    assert executors.device_environment(0, 1, ["0"]) == executors.device_environment(0, 2, []) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert executors.visible_gpus() == ["2", "3"]


def test_workers_on_ray_are_jobs(tmp_path, monkeypatch):
    jobs = []

    class Client:
        def submit_job(self, **job):
            jobs.append(job)
            return job["submission_id"]

    monkeypatch.setattr(clusters.ray, "connect", lambda address: Client())
    monkeypatch.setattr(clusters.ray, "has_gpus", lambda address: True)
    for kind in ("any", "none"):
        names = clusters.submit_ray(tmp_path / "sweep", 2, [], "http://127.0.0.1:8265", Resources(kind, n_cpu=3))
        assert len(set(names)) == 2
    assert all("everstep.sweeps.worker" in job["entrypoint"] for job in jobs)
    assert [job["entrypoint_num_cpus"] for job in jobs] == [3.0] * 4
    assert [job.get("entrypoint_num_gpus") for job in jobs] == [1.0, 1.0, None, None]


def test_a_worker_of_a_job_ends_when_nothing_is_left(sweep, objectives, tmp_path):
    from everstep.sweeps.worker import main

    sweep(objectives.parabola, {"x": [1, 2]}, sampler="grid")
    assert main([str(tmp_path / "sweep"), "--no-wait"]) == 0
    assert main([str(tmp_path / "nowhere"), "--no-wait"]) == 2


def test_sweeps_are_listed_with_their_best(sweep, tmp_path):
    done = sweep(lambda values, directory: values["x"], {"x": [3, 1, 2]}, sampler="grid")
    (found,) = find_sweeps(tmp_path)
    assert (
        found.line() == f"sweep {tmp_path / 'sweep'}: 3 of 3 trials of {found.table['target']}, best value=1 (trial 1)"
    )
    assert found.best(2) == [tmp_path / "sweep" / "trials" / "1", tmp_path / "sweep" / "trials" / "2"]
    assert set(found.places.values()) == {0, 1, 2}
    assert read_sweep(done.best.directory) is None


def test_trials_have_names_and_tags(monkeypatch):
    assert (sweep_tags(), trial_name()) == ({}, "")
    monkeypatch.setenv(SWEEP, "lines")
    monkeypatch.setenv(TRIAL, "3")
    assert sweep_tags() == {"everstep.sweep": "lines", "everstep.trial": "3"}
    assert trial_name() == "lines 3"


@pytest.mark.full
def test_on_mlflow_there_is_a_parent_with_a_run_for_each_trial(sweep, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from everstep.sweeps.parent_run import PARENT
    from everstep.tracking.mlflow import MlflowNames, MlflowTracker

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def objective(values, directory):
        tracker = MlflowTracker(directory, f"run{values['x']}", MlflowNames("lines"), uri)
        tracker.start(0)
        tracker.log(1, {"loss": values["x"]}, "train")
        tracker.finish("finished")
        tracker.close()
        return values["x"]

    sweep(objective, {"x": [3, 1]}, sampler="grid")
    sweep(objective, {"x": [3, 1]}, sampler="grid")  # once more: nothing is added twice
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("lines").experiment_id])
    parents = [run for run in runs if PARENT not in run.data.tags]
    assert (len(runs), len(parents)) == (3, 1)
    assert {run.data.tags[PARENT] for run in runs if run not in parents} == {parents[0].info.run_id}
    assert parents[0].data.metrics == {"best value": 1.0}
