"""A wrong configuration is refused first: one message, exit code 2, nothing written, Keras not loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wrong_configs import WRONG

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent

# All in one process without Keras: what one of them loads would show in the others.
CHILD = """
import contextlib, io, json, os, sys
from pathlib import Path
from everstep.cli.main import main
from wrong_configs import WRONG

answers = []
for number, (files, words, _) in enumerate(WRONG):
    home = Path(sys.argv[1], str(number))
    home.mkdir()
    os.chdir(home)
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    before = sorted(str(path) for path in home.rglob("*"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["train", *words])
    after = sorted(str(path) for path in home.rglob("*"))
    loaded = [name for name in ("keras", "tensorflow", "jax") if name in sys.modules]
    printed = {"out": out.getvalue(), "err": err.getvalue()}
    answers.append({"code": code, **printed, "new": after != before, "loaded": loaded})
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"} | {"PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", CHILD, str(tmp_path_factory.mktemp("wrong"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_table_is_long_enough() -> None:
    assert len(WRONG) >= 60


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[" ".join(words)[:60] for _, words, _ in WRONG])
def test_one_message_and_nothing_else(answers: list[dict[str, Any]], number: int) -> None:
    answer, pieces = answers[number], WRONG[number][2]
    assert answer["code"] == 2, answer["err"]
    assert answer["err"].startswith("everstep: error: ")
    assert answer["err"].count("everstep: error: ") == 1
    assert "Traceback" not in answer["err"]
    assert [piece for piece in pieces if piece not in answer["err"]] == [], answer["err"]
    assert (answer["out"], answer["new"], answer["loaded"]) == ("", False, [])


@pytest.mark.parametrize(("words", "code"), [(["config", "mnist/mlp"], 0), (["train", "mnist/mpl"], 2)])
def test_the_answer_is_fast(shell: Any, words: list[str], code: int) -> None:
    """Compared with a process that only imports the libraries, so that it holds on a slow machine, too."""
    libraries = [sys.executable, "-c", "import hydra, numpy, omegaconf, pydantic, rich, typer, yaml"]
    subprocess.run(libraries, check=True)  # once, for the disk
    shell(*words)
    begin = _children_seconds()
    subprocess.run(libraries, check=True)
    bare = _children_seconds() - begin
    begin = _children_seconds()
    assert shell(*words).code == code
    assert _children_seconds() - begin <= 4 * bare


def _children_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system
