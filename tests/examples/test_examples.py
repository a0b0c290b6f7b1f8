"""Every example runs, as a user would run it, and prints what its docstring promises."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import nbclient
import nbformat
import pytest

from everstep.config import dialect, get_exp_config

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, model_dir: Path, timeout: float = 300) -> str:
    """Runs an example on the backend of this process; returns what it prints."""
    command = [
        sys.executable,
        str(EXAMPLES / name),
        "--backend",
        keras.backend.backend(),
        "--model-dir",
        str(model_dir),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run(
        command, cwd=model_dir.parent, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """Returns every number that follows the words of `pattern`."""
    return [float(found) for found in re.findall(pattern + r"[: ]+(-?\d+\.\d+|nan|inf)", text)]


@pytest.mark.full  # daily: docs/how-to/custom-step.md
@pytest.mark.backend
def test_custom_step(tmp_path):
    printed = run("custom_step.py", tmp_path / "run")
    losses, norms = numbers("loss", printed), numbers("gradient norm", printed)
    assert len(losses) == len(norms) == 6
    assert losses[-1] < losses[0]
    assert all(0 < norm < 10 for norm in norms)
    assert numbers("accuracy of the teacher", printed)[0] > 0.93


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.timeout(1600)
def test_progressive(tmp_path):
    """Small images first are as good as full size all the time, and better than full size for as many computations."""
    printed = run("progressive.py", tmp_path / "run", timeout=1500)
    full, stopped, growing = numbers("accuracy", printed)
    assert full > 0.95
    assert growing >= full - 0.003
    assert growing > stopped
    assert re.findall(r"computed +(\d+)%", printed) == ["100", "72", "72"]
    names = ["full-size-all-the-time", "full-size,-stopped-early", "growing-over-3-stages"]
    records = [json.loads((tmp_path / "run" / name / "run.json").read_text()) for name in names]
    assert [(record["status"], record["step"]) for record in records] == [("finished", n) for n in (1500, 1087, 1500)]
    copies = sorted(int(path.name) for path in (tmp_path / "run" / names[-1] / "exported_ckpts").iterdir())
    assert copies[-1] == 1500, "the model at the end of training is always among them"


@pytest.mark.full  # every day `fit` trains and resumes a GAN: tests/frontends/fit/test_fit_models.py
@pytest.mark.backend
def test_gan(tmp_path):
    printed = run("gan.py", tmp_path / "run")
    for name in ("generator loss", "critic loss"):
        losses = numbers(name, printed)
        assert len(losses) == 6
        assert all(map(math.isfinite, losses))
    means = numbers("generated mean", printed)
    assert abs(means[-1] - 2) < 0.3
    assert abs(means[-1] - 2) < abs(means[0] - 2)
    assert abs(numbers("final mean", printed)[0] - 2) < 0.3


def test_gan_source_names_no_backend():
    source = (EXAMPLES / "gan.py").read_text().partition('"""\n\nimport')[2]
    assert not re.search(r"tensorflow|jax|torch|keras\.backend|keras\.config", source)


@pytest.mark.full
@pytest.mark.backend
def test_fit(tmp_path):
    printed = run("fit.py", tmp_path / "run")
    losses = numbers("loss", printed)
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 2
    accuracy = numbers(r"(?m)^accuracy", printed)
    assert accuracy[0] > 0.9
    assert {p.name for p in (tmp_path / "run" / "export").iterdir()} >= {"model.keras"}


@pytest.mark.full
@pytest.mark.backend
def test_fit_again(tmp_path):
    printed, again = run("fit.py", tmp_path / "run"), run("fit.py", tmp_path / "run")
    assert numbers("loss", again) == numbers("loss", printed)  # of all attempts; this one has trained nothing
    assert numbers(r"(?m)^accuracy", again) == numbers(r"(?m)^accuracy", printed)
    assert "finished at step 628, attempts: 2" in again


@pytest.mark.full
@pytest.mark.backend
def test_masked_lm(tmp_path):
    printed = run("masked_lm.py", tmp_path / "run")
    assert numbers("accuracy of masked tokens", printed)[0] > 0.9


def train(model_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs the training program of examples/train.py on the backend of this process, from its own folder."""
    backend = keras.backend.backend()
    strategy = "mirrored" if backend == "jax" else "one_device"
    words = ["--mode=train_and_eval", f"--model_dir={model_dir}", *flags]
    words += [f"--params_override=runtime.distribution_strategy={strategy},trainer.train_steps=30"]
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "train.py"), *words],
        cwd=EXAMPLES,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.full
@pytest.mark.backend
def test_train(tmp_path):
    done = train(tmp_path / "run", "--experiment=mnist/local", "--gin_params=MnistModel.units = 8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "mnist/local"
    written = dialect.load((tmp_path / "run" / "params.yaml").read_text())
    assert (written["trainer"]["train_steps"], written["task"]["model"]["units"]) == (30, 8)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["step"] == 30
    assert get_exp_config("mnist/local").replace(**written).to_yaml() == (tmp_path / "run" / "params.yaml").read_text()


@pytest.mark.full
def test_train_reports_bad_input_in_one_line(tmp_path):
    done = train(tmp_path / "run", "--experiment=mnist/lokal")
    assert done.returncode == 2
    assert "everstep: error: no experiment 'mnist/lokal': did you mean 'mnist/local'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.full
@pytest.mark.backend
def test_gin_blocks(tmp_path):
    tiny = ["trainer.train_steps=4", "task.model.width=8", "task.model.hidden=8", "task.model.depth=1"]
    words = ["text/tiny", "--import", "blocks", "--gin-file", "talking_gated.gin", *tiny, "trainer.validation_steps=1"]
    done = subprocess.run(
        [sys.executable, "-m", "everstep", "train", *words, "--model-dir", tmp_path / "run"],
        cwd=EXAMPLES / "gin_blocks",
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    used = (tmp_path / "run" / "operative_config.gin").read_text()
    assert "transformer.attention = @talking_heads" in used
    assert "gated.activation = 'silu'" in used
    model = keras.models.load_model(tmp_path / "run" / "export" / "model.keras")
    kinds = [type(layer).__name__ for layer in model.layers]
    assert "Multiply" in kinds
    assert "MultiHeadAttention" not in kinds


@pytest.mark.full
@pytest.mark.filterwarnings("default")  # of the machinery that runs notebooks
def test_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    notebook = nbformat.read(EXAMPLES / "fit.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    assert f"backend: {keras.backend.backend()}" in text
    assert numbers("accuracy", text)[0] > 0.9
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    assert (tmp_path / "runs" / "fit-notebook" / "run.json").is_file()


def test_notebook_makes_the_calls_of_the_script():
    notebook = nbformat.read(EXAMPLES / "fit.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    script = (EXAMPLES / "fit.py").read_text()
    for part in (r"model = keras.*?\n\)\n", r"model\.compile.*?\n", r"callbacks=\[.*?\n    \],"):
        assert re.search(part, script, re.DOTALL)[0].strip() in code


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) <= 120
