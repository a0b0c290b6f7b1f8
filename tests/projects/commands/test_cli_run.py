"""`everstep run` and `everstep check`, as a user types them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "components"))
from components_project import MODELS, write_data, write_run, write_source
from tests.children import forked

from everstep.cli.main import main

pytestmark = pytest.mark.slow

EVERSTEP = str(Path(sys.executable).with_name("everstep"))
BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


def start(root: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return forked.Popen([EVERSTEP, *words], backend=BACKEND, cwd=root, env=kept | environment, **pipes)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def everstep(root: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    return ended(start(root, *words, **environment))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mnist")
    write_source(root)
    write_data(root)
    write_run(root, data_dir="datasets/mnist")
    return root


@pytest.fixture(scope="module")
def done(project: Path) -> tuple[int, str, str]:
    """Trains the run once, with options in their older spelling; returns exit code and output."""
    return everstep(project, "run", "--run_name=a", f"--backend={BACKEND}", "--data_dir=datasets/mnist")


@pytest.mark.full  # daily in process: tests/projects/components, tests/examples
@pytest.mark.backend
def test_a_run_prints_means_and_files(project: Path, done: tuple[int, str, str]) -> None:
    code, out, err = done
    assert code == 0, err
    table, files = out.split("\n\n")
    means = json.loads((project / "runs/a/reports/metrics.json").read_text())
    assert table.splitlines()[0].split() == ["mean", "validation", "test"]
    rows = {line[:27].strip(): line[27:].split() for line in table.splitlines()[1:]}
    for name, kind in (("loss", "model.evaluate"), ("sparse categorical ce", "eval_funcs")):
        expected = [f"{means[split][kind][name]:.6g}" for split in ("validation", "test")]
        assert rows[name] == expected
    assert "runs/a/eval_report.csv" in files
    assert all((project / line.rsplit("  ", 1)[-1].strip()).exists() for line in files.splitlines())
    assert json.loads((project / "runs/a/run.json").read_text())["backend"] == BACKEND
    assert "I0000" not in err
    assert "Traceback" not in err


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Runs `everstep …` in this process, in the project, without MLflow."""
    monkeypatch.chdir(project)

    def call(*words: str) -> tuple[int, str, str]:
        from everstep.projects.components import orchestrator
        from everstep.projects.project_tracking import Tracking

        monkeypatch.setattr(orchestrator, "create_tracking", lambda *_: Tracking())
        return (main(words), *capsys.readouterr())

    return call


@pytest.mark.full  # daily in process: tests/projects/components, tests/examples
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_finished_run_is_only_evaluated_again(project: Path, done: tuple[int, str, str], here: Any) -> None:
    before = json.loads((project / "runs/a/run.json").read_text())
    code, out, err = here("run", "a", "--json")
    assert code == 0, err
    assert "a is trained and exported already: it is only evaluated again" in err
    found = json.loads(out)
    means = json.loads((project / "runs/a/reports/metrics.json").read_text())
    assert {split: found["results"][split] for split in ("validation", "test")} == {
        split: means[split] for split in ("validation", "test")
    }
    assert found["files"]["exported"] == str(project / "runs" / "a" / "exported")
    assert json.loads((project / "runs/a/run.json").read_text()) == before, "nothing was trained"


@pytest.mark.full  # daily in process: tests/projects/components, tests/examples
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_evaluation_alone(project: Path, done: tuple[int, str, str], here: Any) -> None:
    report = project / "runs/a/eval_report.csv"
    rows = report.read_text()
    report.unlink()
    code, out, err = here("run", "a", "--eval-only")
    assert (code, out) == (0, done[1]), err
    assert report.read_text() == rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "b"], r"run_name: '.*/runs' contains no run 'b': known: 'a'"),
        (["run"], "RUN_NAME: no run is given: everstep run RUN_NAME, a folder in the project's runs/$"),
        (["run", "a", "--run_name=b"], "--run-name: received 'b', the command line also names the run 'a': keep one$"),
        (["run", "a", "--backend=torsch"], "--backend: received 'torsch', unknown backend: did you mean 'torch'"),
        (
            ["run", "a", "--data-dir=nowhere"],
            r"data_dir: received '.*nowhere', does not exist .*data_dir\)$",
        ),
        (["run", "a", "--project-root=nowhere"], "'.*/nowhere/runs' contains no run 'a'"),
        (["run", "empty", "--eval-only"], r"'.*/runs/empty' contains no \*.yaml file"),
        (["run", "runs/a"], "run_name: received 'runs/a', must be the name of a folder in runs/: did you mean 'a'"),
        (
            ["run", "mistyped"],
            "model_builder_class: received 'modles.Net', .* no module 'modles': did you mean 'models'",
        ),
        (["run", "a", "--max-restarts=-1"], "--max-restarts: received -1, must be 0 or more$"),
        (["check", "b"], r"'.*/runs' contains no run 'b': known: 'a'"),
        (["check", "a", "--data-dir=nowhere"], "--data-dir: received 'nowhere', does not exist$"),
        (["check", "a", "--max-samples=0"], "--max-samples: received 0, must be at least 1$"),
    ],
)
def test_bad_requests(words: list[str], message: str, project: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(project)
    (project / "runs" / "empty").mkdir(exist_ok=True)
    write_run(project, "mistyped", model_builder_class="modles.Net")
    assert main(words) == 2
    found = capsys.readouterr()
    assert re.search(message, found.err.strip()), found.err
    assert (found.out, found.err.count("\n")) == ("", 1)


def test_a_wrong_module_is_found_before_keras_is_loaded(project: Path) -> None:
    write_run(project, "mistyped", model_builder_class="modles.Net")
    script = """if True:
        import sys
        from everstep.cli.main import main
        assert main(["run", "mistyped"]) == 2
        print(*(name for name in ("keras", "tensorflow", "jax", "torch", "mlflow") if name in sys.modules))"""
    done = subprocess.run([sys.executable, "-c", script], cwd=project, check=True, capture_output=True, text=True)
    assert "'modles'" in done.stderr
    assert done.stdout.split() == []


def test_nothing_is_evaluated_without_an_export(project: Path, here: Any) -> None:
    folder = write_run(project, "untrained", data_dir="datasets/mnist")
    code, out, err = here("run", "untrained", "--eval-only")
    assert (code, out) == (2, "")
    assert re.search(r"run: received .*/runs/untrained/exported., contains no export: train the run first\n$", err)
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


SLOW = """
        def get_callbacks(self):
            import time
            return [keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: time.sleep(0.05))]
"""


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_and_resumed(tmp_path: Path, project: Path, how: int, code: int) -> None:
    write_source(tmp_path, models=MODELS + SLOW)
    folder = write_run(tmp_path, epochs=4, data_dir=str(project / "datasets" / "mnist"))
    process = start(tmp_path, "run", "a", KERAS_BACKEND=BACKEND)
    saved = folder / "training" / "checkpoints"
    until(process, lambda: saved.is_dir() and any(saved.iterdir()))
    process.send_signal(how)
    found, _, err = ended(process)
    assert found == code, err
    assert "the same command resumes from there" in err
    process = start(tmp_path, "run", "a", KERAS_BACKEND=BACKEND)
    until(process, lambda: (folder / "exported").is_dir() and (folder / "reports").is_dir())
    process.send_signal(how)
    found, _, err = ended(process)
    assert found in (code, 0), err
    assert "Traceback" not in err
    code, out, err = everstep(tmp_path, "run", "a", KERAS_BACKEND=BACKEND)
    assert code == 0, err
    assert out.startswith("mean ")
    assert json.loads((folder / "run.json").read_text())["step"] == 32


def until(process: subprocess.Popen[str], condition: Any) -> None:
    while not condition():
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.full
@pytest.mark.backend
def test_check_from_the_shell(tmp_path: Path, project: Path) -> None:
    write_source(tmp_path)
    write_run(tmp_path, export={"metric": "val_acc"})
    words = ["check", "a", "--data-dir", str(project / "datasets" / "mnist"), "--backend", BACKEND]
    code, out, err = everstep(tmp_path, *words)
    assert code == 1, err
    assert [line[:4] for line in out.splitlines()].count("FAIL") == 1
    assert "FAIL config: export.metric: received 'val_acc', no epoch has this metric" in out
    write_run(tmp_path)
    code, out, err = everstep(tmp_path, *words, "--json")
    assert code == 0, err
    assert {each["status"] for each in json.loads(out)} <= {"ok", "skip"}
    assert sorted(path.name for path in (tmp_path / "runs" / "a").iterdir()) == ["config.yaml"]
