"""The job file, and the calls of Slurm's programs, which are small scripts that keep their arguments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from submit_place import Place

pytestmark = pytest.mark.slow

CONFIG = {
    "src_code_path": "src",
    "data_loader_class": "dataset.Loader",
    "preprocessor_class": "dataset.Loader",
    "model_builder_class": "dataset.Loader",
    "evaluator_class": "dataset.Loader",
    "project_name": "my digits",
    "epochs": 1,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def cluster(place: Place) -> Place:
    place.program("sbatch", 'cat "$2" > received.job; echo "$1" > received.option; echo "123;cluster"')
    place.program("squeue", 'echo "$@" >> arguments; printf "122 RUNNING\\n123 PENDING\\n"')
    return place


@pytest.fixture
def project(cluster: Place) -> Path:
    """A project whose path has a blank in it."""
    root = cluster.folder / "some project"
    for folder in ("src", "runs/first", "data"):
        (root / folder).mkdir(parents=True)
    (root / "src" / "dataset.py").write_text("class Loader: pass\n")
    (root / "data" / "labels.csv").write_text("a,1\n")
    (root / "runs" / "first" / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return root


def command(job_file: str) -> str:
    """The last line: nothing comes after it, and it is one line."""
    assert job_file.endswith("\n")
    *_, empty, last = job_file.removesuffix("\n").split("\n")
    assert empty == ""
    return last


@pytest.mark.parametrize("with_data", [True, False])
def test_the_job_file_of_a_projects_run(cluster: Place, project: Path, with_data: bool) -> None:
    options = ["--gpu-type", "v100", "--hours", "2.5", "--mem", "4096", "--n_cpu", "3", "--email", "me@example.org"]
    data = ["--data_dir", str(project / "data")] if with_data else []
    printed = cluster.everstep("submit", "first", "--project_root", str(project), *data, *options, "--on=slurm")
    run = project / "runs" / "first"
    assert printed.splitlines()[0].split() == ["job", "123", "(slurm)"]
    text = (run / "my_digits_first.job").read_text()
    assert Path("received.job").read_text() == text
    assert Path("received.option").read_text() == "--parsable\n"
    assert text.splitlines()[: text.splitlines().index("")] == [
        "#!/bin/bash",
        "#SBATCH --job-name=my_digits_first",
        "#SBATCH --gres=gpu:v100:1",
        "#SBATCH --time=02:30:00",
        "#SBATCH --mem=4096",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --mail-user=me@example.org",
        "#SBATCH --mail-type=ALL",
        f'#SBATCH --output="{run}/log-%j.out"',
        f'#SBATCH --error="{run}/log-%j.err"',
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@120",
    ]
    (snapshot,) = (run / "submissions").iterdir()
    ending = f" --data-dir '{project}/data'" if with_data else ""
    assert command(text) == (
        f"exec {sys.executable} -m everstep.submit.job '{snapshot}' --max-restarts 10 -- "
        f"{sys.executable} -m everstep run first --project-root '{project}'{ending}"
    )
    assert (snapshot / "config.yaml").read_bytes() == (run / "config.yaml").read_bytes()
    assert (snapshot / "sources" / "dataset.py").read_text() == "class Loader: pass\n"


def test_a_queued_run_is_listed_and_not_submitted_twice(cluster: Place, project: Path) -> None:
    words = ("submit", "first", "--project-root", str(project), "--on", "slurm")
    cluster.everstep(*words)
    (row,) = cluster.everstep("runs", str(project)).splitlines()[1:]
    assert "queued (slurm 123)" in row
    assert "slurm 123 waits in the queue: scancel 123 ends it" in cluster.everstep(*words, code=2)
    cluster.program("squeue", "true")
    assert "killed" in cluster.everstep("runs", str(project)), "cancelled, and never begun"
    cluster.everstep(*words)
    assert len(list((project / "runs" / "first" / "submissions").iterdir())) == 2


def test_too_many_jobs(cluster: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "2")
    assert "MAX_JOBS: received 2, you have 2 jobs on the cluster" in cluster.submit(1, "--on", "slurm", code=2)
    monkeypatch.setenv("MAX_JOBS", "many")
    assert "MAX_JOBS: received 'many'" in cluster.submit(1, "--on", "slurm", code=2)
    monkeypatch.setenv("MAX_JOBS", "3")
    assert "123 (slurm)" in cluster.submit(1, "--on", "slurm")
    assert "--user" in Path("arguments").read_text()


def test_slurms_refusal_is_shown_and_nothing_is_left(cluster: Place) -> None:
    cluster.program("sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    printed = cluster.submit(1, "--on", "slurm", code=2)
    assert printed == "everstep: error: --on: received 'slurm', sbatch refused: sbatch: error: invalid partition\n"
    assert not (cluster.run / "submissions").exists()


def test_the_job_file_can_be_printed_without_slurm(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place.folder))
    printed = place.submit(1, "--on", "slurm", code=2)
    assert printed.startswith("everstep: error: --on: received 'slurm', there is no sbatch on this machine")
    assert printed.count("\n") == 1
    text = place.submit(1, "--on", "slurm", "--dry-run", "--gpu-type", "none")
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=")
    assert "gres" not in text
    assert "mail" not in text
    assert "gres=gpu:1\n" in place.submit(1, "--on", "slurm", "--dry-run")
    assert not place.run.exists()


def test_a_command_whose_code_was_edited_is_not_run(cluster: Place) -> None:
    """A command cannot be run from a copy."""
    cluster.submit(0.2, "--on", "slurm")
    toy = cluster.folder / "toy_run.py"
    toy.write_text(toy.read_text().replace('"first"', '"second"'))
    (file,) = cluster.run.glob("*.job")
    done = subprocess.run(["bash", str(file)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"everstep: error: {cluster.folder}: Python files have changed since")
    assert done.stderr.count("\n") == 1
    assert not (cluster.run / "run.json").exists()
    assert cluster.listed()["state"] == "failed (exit 2, slurm 123)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hours", "0"], "--hours: received 0.0, must be more than 0"),
        (["--mem", "0"], "--mem: received 0, must be at least 1"),
        (["--gpu-type", "v100\n#SBATCH"], "--gpu-type: received 'v100\\n#SBATCH', expected a name such as v100"),
        (["--email", "me"], "--email: received 'me', is not an email address"),
    ],
)
def test_bad_resources(place: Place, options: list[str], message: str) -> None:
    assert message in place.submit(1, "--on", "slurm", *options, code=2)


def test_the_job_warns_of_changed_data(cluster: Place) -> None:
    (cluster.folder / "data").mkdir()
    cluster.submit(0.1, "--on", "slurm", "--data-dir", "data")
    (cluster.folder / "data" / "more.bin").write_bytes(b"12345")
    (file,) = cluster.run.glob("*.job")
    done = subprocess.run(["bash", str(file)], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "has changed: 0 files of 0 bytes when it was submitted, 1 files of 5 bytes now" in done.stderr
    assert cluster.record()["status"] == "finished"


def test_the_job_file_of_several_processes(place: Place) -> None:
    words = ("--on", "slurm", "--dry-run", "--processes", "4", "--n-cpu", "3", "--mem", "1000")
    text = place.submit(1, *words)
    for option in ("ntasks=4", "gpus-per-task=1", "mem-per-cpu=334", "cpus-per-task=3", "requeue", "signal=B:USR1@120"):
        assert f"#SBATCH --{option}\n" in text
    assert "gres" not in text
    assert " --max-restarts 10 --on slurm --processes 4 -- " in command(text)
    assert "gpus-per-task=v100:1\n" in place.submit(1, *words, "--gpu-type", "v100")
    assert " --processes 2..4 -- " in place.submit(1, "--dry-run", "--processes", "2..4")
    assert "--processes: received '2..4', expected one number" in place.submit(
        1, "--on=slurm", "--processes=2..4", code=2
    )
