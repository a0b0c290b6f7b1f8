"""Training and evaluating from the shell, as a user types it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers.terminal import Terminal

from everstep.cli.output import quiet

pytestmark = pytest.mark.slow

OURS = re.compile(
    r"Model: |[┏┃┡│├└]| (Total|Trainable|Non-trainable) params|(train|validation) batch: |plan: |cost |"
    r"train \| | eval \| |$"
)


def only_our_lines(text: str) -> bool:
    return all(OURS.match(line) for line in text.splitlines())


@pytest.mark.full
def test_train_then_evaluate_then_repeat_on_jax(shell: Any, tmp_path: Path) -> None:
    done = shell("train", "tiny/line", "--import=tiny_experiments", "runtime.backend=jax", "--seed=3", "--no_export")
    assert done.code == 0, done.err
    assert only_our_lines(done.err), done.err
    (directory,) = (tmp_path / "runs").iterdir()
    name = f"runs/{directory.name}"
    assert re.search(rf"^run +{name}\ncurves +tensorboard --logdir {name}\nvalidation_loss +\d", done.out)

    evaluated = shell("eval", name, "--import", "tiny_experiments", "--json")
    assert evaluated.code == 0, evaluated.err
    record = json.loads((directory / "run.json").read_text())
    assert json.loads(evaluated.out)["validation_loss"] == record["metrics"]["validation"]["validation_loss"]
    assert (record["backend"], record["step"], record["status"]) == ("jax", 8, "finished")

    again = shell("train", f"--config_file={name}/config.yaml", "--import=tiny_experiments", "--model_dir=again")
    assert again.code == 0, again.err
    assert f"exported         {Path('again/export/model.keras')}" in again.out
    assert json.loads((tmp_path / "again/run.json").read_text())["digest"] == record["digest"]


@pytest.mark.full  # daily on this backend: tests/model_garden/test_absl_program.py
def test_model_gardens_command_line_on_tensorflow(shell: Any, tmp_path: Path) -> None:
    words = ["--experiment=mnist/local", "--mode=train_and_eval", "--model_dir=D", "--alsologtostderr", "--v=1"]
    done = shell("train", *words, "--params_override=trainer.train_steps=4", KERAS_BACKEND="tensorflow")
    assert done.code == 0, done.err
    assert only_our_lines(done.err), done.err
    record = json.loads((tmp_path / "D/run.json").read_text())
    assert (record["experiment"], record["backend"], record["step"]) == ("mnist/local", "tensorflow", 4)
    assert "exported         D/export/saved_model" in done.out


def bad(what: str) -> list[str]:
    return ["train", "tiny/bad", "--mode=train", "--model-dir=D", f"task.what={what}"]


BAD = {
    "mode": (["train", "tiny/line", "--mode=trian", "--model-dir=D"], 2, "mode: received 'trian', unknown mode"),
    "empty": (["train", "tiny/line", "--mode=eval", "--model-dir=D"], 2, "there is no checkpoint to evaluate in 'D'"),
    "failed": (["train", "tiny/line", "task.units=3", "--model-dir=D"], 1, "cannot fit 3 outputs"),
    "no_data": (bad("empty"), 2, "task.train_data: the arrays are empty"),
    "batch": (
        [*bad(""), "task.train_data.global_batch_size=41"],
        2,
        "task.train_data.global_batch_size: received 41, the dataset has only 40 samples",
    ),
    "labels": (bad("labels"), 2, "task.train_data: the labels must be whole numbers from 0 to 3"),
    "no_loss": (bad("no loss"), 2, "has no loss: write build_losses"),
    "no_loss_key": (bad("no loss key"), 2, "BadTask.train_step: returned no 'loss'"),
    "unseeded": (bad("unseeded"), 2, "keras.random"),
    "variable": (bad("variable"), 2, "variable 'late': is created inside a step"),
    "validation": (
        [
            *bad(""),
            "--mode=train_and_eval",
            "task.validation_data.global_batch_size=99",
            "task.validation_data.drop_remainder=true",
        ],
        2,
        "task.validation_data.global_batch_size: received 99",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_bad_requests_that_need_keras(tmp_path: Path, backend: str) -> None:
    here = Path(__file__).parent
    words = {name: [*case[0], "--import=tiny_experiments", f"--backend={backend}"] for name, case in BAD.items()}
    script = f"""if True:
        import sys
        from everstep.cli.main import main
        for name, words in {words!r}.items():
            print(name, main(words), file=sys.stderr, flush=True)"""
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    environment["PYTHONPATH"] = os.pathsep.join([str(here), os.environ["PYTHONPATH"]])
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    for name, (_, code, text) in BAD.items():
        assert re.search(rf"everstep: error: [^\n]*{re.escape(text)}[^\n]*\n{name} {code}\n", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


CHATTER = b"I0000 00:00:17.1 12 port.cc:153] oneDNN custom operations are on.\n"


def load_noisily() -> None:
    with quiet():
        os.write(2, CHATTER + b"\x1b[2A\r" + CHATTER + b"a line of the user\n")  # the second one after the live display


def test_quiet_drops_only_startup_messages(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    load_noisily()
    assert capfd.readouterr().err == "\x1b[2A\ra line of the user\n"
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # the user wants to see it
    load_noisily()
    assert capfd.readouterr().err.encode().startswith(CHATTER)


def test_a_terminal_shows_what_is_loading(tmp_path: Path) -> None:
    """The line is printed once, before the loading, which takes seconds; the display of a killed run goes."""
    program = """
print("\\n\\n a display, with the cursor above it\\x1b[2A\\r", end="")
from everstep.cli.output import quiet
from tests.servers.terminal import Terminal
for what in ("the user's module", "the backend"):
    with quiet():
        print(what)
"""
    environment = {**os.environ, "KERAS_BACKEND": "torch", "TERM": "xterm"}
    with Terminal([sys.executable, "-uc", program], environment) as terminal:
        assert terminal.end() == 0
    assert terminal.screen.text().splitlines() == ["loading Keras, backend torch", "the user's module", "the backend"]


def load_and_fail() -> None:
    with quiet():
        os.write(2, CHATTER)
        raise ImportError


def test_quiet_keeps_messages_of_a_failure(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    with pytest.raises(ImportError):
        load_and_fail()
    assert capfd.readouterr().err.encode() == CHATTER
