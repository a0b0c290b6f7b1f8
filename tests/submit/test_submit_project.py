"""A submitted run of a project trains what was submitted, whatever is edited meanwhile."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from submit_place import Place, until

sys.path.insert(0, str(Path(__file__).parents[1] / "projects" / "components"))
from components_project import write_data, write_run, write_source

pytestmark = [pytest.mark.full, pytest.mark.backend, pytest.mark.timeout(900)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return Place(tmp_path, monkeypatch)


def test_edits_while_it_waits_and_a_kill_while_it_trains(place: Place) -> None:
    root, run = place.folder, place.folder / "runs" / "a"
    data = write_data(root)
    write_source(root)
    write_run(root, epochs=20)
    place.program("sbatch", "echo 7")
    place.program("squeue", 'echo "7 PENDING"')
    place.everstep("submit", "a", "--data-dir", str(data), "--on", "slurm", "--gpu-type", "none")
    (snapshot,) = (run / "submissions").iterdir()

    write_source(root, models="raise RuntimeError('edited, and broken')\n")
    (run / "config.yaml").write_text("epochs: many\n")
    (run / "mnist_a.job").chmod(0o755)
    job = os.posix_spawn(run / "mnist_a.job", ["mnist_a.job"], os.environ)
    training = run / "training"
    until(lambda: (training / "checkpoints").is_dir() and list((training / "checkpoints").glob("[1-9]*")))
    assert place.listed()["state"] == "running"
    assert place.listed()["train_steps"] == 20 * 8

    shutil.rmtree(root / "src")  # all that is left is the copy
    os.kill(json.loads((training / ".lock.json").read_text())["pid"], signal.SIGKILL)
    _, status = os.waitpid(job, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    record = json.loads((run / "run.json").read_text())
    assert [attempt["reason"] for attempt in record["attempts"]] == ["SIGKILL", "done"]
    assert record["code"] == json.loads((snapshot / "submission.json").read_text())["code"]
    assert (run / "eval_report.csv").is_file()
    assert place.listed()["state"] == "finished"
    print(f"\n{record['step']} steps in {len(record['attempts'])} attempts from {snapshot.name}")
