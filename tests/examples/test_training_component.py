"""The training component: as a pipeline would run it, preempted, killed, and given bad input."""

import contextlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import pytest
from absl import flags

FOLDER = Path(__file__).parents[2] / "examples" / "training_component"

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="its functions are TensorFlow's")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("component") / "shapes"
    program = str(FOLDER / "generate_data.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [program, str(folder), "--train", "66", "--valid", "12", "--shards", "2"])
        runpy.run_path(program, run_name="__main__")
    return folder


def words(data, root, *more):
    places = [f"--job_dir={root / 'job'}", f"--artifacts_dir={root / 'artifacts'}", f"--pipeline_files={root}"]
    return [sys.executable, FOLDER / "component.py", f"--dataset={data}", *places, "--global_batch_size=16", *more]


def launched(command):
    return [sys.executable, "-m", "everstep", "launch", "--max-restarts", "3", "--backoff", "0", "--", *command]


def killed_after(command, job, step):
    """Runs a command and kills the process that trains, once, when it has saved a step; returns how the whole ended."""
    out, err = job.with_name("out.txt"), job.with_name("err.txt")  # an unread pipe would block it when full
    with open(out, "w") as o, open(err, "w") as e, subprocess.Popen(command, stdout=o, stderr=e) as process:
        try:
            end = time.monotonic() + 500
            while process.poll() is None and not (job / "checkpoints" / str(step)).exists():
                assert time.monotonic() < end
                time.sleep(0.02)
            os.kill(json.loads((job / ".lock.json").read_text())["pid"], signal.SIGKILL)
            process.wait(timeout=500)
        finally:
            process.terminate()  # the launcher ends what it has started
    return process.returncode, out.read_text(), err.read_text()


def test_component(data, tmp_path, monkeypatch):
    """As a program in this process: all files that a pipeline expects."""
    command = words(data, tmp_path, "--model=small", "--epochs=1", "--size=32", "--percentage=75")
    monkeypatch.setattr("sys.argv", [str(word) for word in command[1:]])
    with pytest.raises(SystemExit) as left, absl_flags_of_its_own():
        runpy.run_path(str(FOLDER / "component.py"), run_name="__main__")
    assert left.value.code == 0
    assert json.loads((tmp_path / "job" / "job_meta.json").read_text())["last_epoch"] == 1
    assert (tmp_path / "artifacts" / "saved_model" / "saved_model.pb").is_file()


@contextlib.contextmanager
def absl_flags_of_its_own():
    """Removes the flags that the program defined."""
    before = set(flags.FLAGS)
    try:
        yield
    finally:
        for name in set(flags.FLAGS) - before:
            delattr(flags.FLAGS, name)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_preempted(data, tmp_path):
    """Killed while training, restarted by the launcher: done, with all files that a pipeline expects."""
    command = words(data, tmp_path, "--model=small", "--epochs=4", "--size=32", "--percentage=75")
    code, out, err = killed_after(launched(command), tmp_path / "job", 3)
    assert code == 0, err
    assert "restart 1 of 3" in err
    assert len(re.findall(r"epoch \d: val_accuracy", out)) == 4
    assert json.loads((tmp_path / "job" / "job_meta.json").read_text())["last_epoch"] == 4
    assert len((tmp_path / "artifacts" / "history.csv").read_text().splitlines()) == 5
    assert (tmp_path / "artifacts" / "saved_model" / "saved_model.pb").is_file()
    shown = json.loads((tmp_path / "mlpipeline-ui-metadata.json").read_text())
    assert shown["outputs"][0]["source"] == str(tmp_path / "job" / "logs")


@pytest.mark.full
def test_bad_input(data, tmp_path):
    """One line and exit code 2, which the launcher does not try again."""
    command = launched(words(data, tmp_path, "--model=small", "--size=32", "--global_batch_size=1000"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert re.search(
        r"^everstep: error: global_batch_size: received 1000, but there are 66 training records", done.stderr, re.M
    )
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_resnet50(data, tmp_path):
    """ResNet50 on 112 x 112, two short epochs, killed in between: the weights of an uninterrupted run."""
    digests = []
    for name, kill in (("whole", False), ("cut", True)):
        root = tmp_path / name
        root.mkdir()
        command = words(data, root, "--model=resnet50", "--epochs=2", "--percentage=50")
        if kill:
            code, _, err = killed_after(launched(command), root / "job", 2)
        else:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            code, err = done.returncode, done.stderr
        assert code == 0, err
        digests.append(json.loads((root / "job" / "run.json").read_text())["digest"])
    assert digests[0] == digests[1]


def test_dockerfile():
    """Not built here; but what it copies is there, it ends as a pipeline expects, and pins no machine of ours."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("FROM python:3.")
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
    assert all((FOLDER / name).is_file() for names in copied for name in names)
    entry = json.loads(next(line for line in lines if line.startswith("ENTRYPOINT")).removeprefix("ENTRYPOINT "))
    assert entry[:2] == ["everstep", "launch"]
    assert entry[entry.index("--") + 1 :] == ["python", "component.py"]
    assert [line for line in lines if line.startswith("USER")] == ["USER trainer"]
