"""The tab key, by the protocols of the shells."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.servers.terminal import Terminal

pytestmark = pytest.mark.slow

Complete = Callable[..., list[str]]


def everstep(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everstep"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a run, and a sweep with a trial."""
    for name in ("first", "sweep-sine-1234567890/trials/0"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    return tmp_path


@pytest.fixture
def bash(place: Path) -> Complete:
    """Returns what bash is told for words, of which the last is incomplete."""

    def complete(*words: str) -> list[str]:
        line, place_of_word = " ".join(["everstep", *words]), str(len(words))
        done = everstep(place, _EVERSTEP_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=place_of_word)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return complete


def test_commands_and_options(bash: Complete) -> None:
    assert bash("tr") == ["train"]
    assert {"train", "runs", "sweep", "ui"} <= {*bash("")}
    assert bash("runs", "sh") == ["show"]
    assert {"list", "show", "watch", "compare", "tree", "rm", "sync"} == {*bash("runs", "")}
    assert bash("train", "--allow") == ["--allow-change"]
    assert bash("train", "--mode", "train_and_p") == ["train_and_post_eval"]


def test_experiments_and_keys_with_their_values(bash: Complete) -> None:
    assert bash("train", "regr") == ["regression/sine"]
    assert bash("train", "mnist/mlp", "trainer.train_s") == ["trainer.train_steps=4000"]
    assert bash("config", "regression/sine", "task.model.un") == ["task.model.units=64"]
    assert bash("train", "not/registered", "trainer.train_s") == ["trainer.train_steps=1000"]


@pytest.mark.parametrize("value", [["="], ["=", "3"]])
def test_a_value_is_not_completed_as_a_key(bash: Complete, value: list[str]) -> None:
    """Bash hands over `key=3` as three words."""
    assert bash("train", "mnist/mlp", "trainer.train_steps", *value) == []


def test_a_key_after_a_value(bash: Complete) -> None:
    found = bash("train", "mnist/mlp", "trainer.train_steps", "=", "3", "runtime.se")
    assert found == ["runtime.seed=0"]


def test_runs_with_and_without_the_prefix(bash: Complete) -> None:
    assert bash("runs", "show", "f") == ["first"]
    assert bash("report", "runs/f") == ["runs/first"]
    assert bash("runs", "compare", "first", "sweep") == ["sweep-sine-1234567890/trials/0"]
    assert bash("eval", "fi") == ["first"]
    assert bash("export", "elsewhere/") == []  # the shell completes files


def test_zsh_and_fish(place: Path) -> None:
    zsh = everstep(place, _EVERSTEP_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="everstep runs sho")
    assert '"show":"Show one run' in zsh.stdout
    zsh = everstep(place, _EVERSTEP_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="everstep ch")
    assert "Check a run'\\''s components" in zsh.stdout
    words = {"_TYPER_COMPLETE_ARGS": "everstep train mnist/mlp trainer.train_s"}
    fish = everstep(place, _EVERSTEP_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **words)
    assert fish.stdout == "trainer.train_steps=4000\n"


def test_a_real_bash(place: Path) -> None:
    script = everstep(place, _EVERSTEP_COMPLETE="source_bash").stdout
    assert "complete -o default -F _everstep_completion everstep" in script
    program = place / "everstep"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m everstep "$@"\n')
    program.chmod(0o755)
    asked = "COMP_WORDS=(everstep runs show f); COMP_CWORD=3; _everstep_completion everstep; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{asked}"],
        cwd=place,
        env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("first\n", "")


def test_completing_loads_no_backend(place: Path) -> None:
    script = """if True:
        import sys
        from everstep.cli import completion
        from everstep.cli.main import main
        try:
            main([])
        except SystemExit:
            pass
        sys.exit(", ".join(m for m in ("keras", "jax", "tensorflow", "torch", "orbax") if m in sys.modules) or 0)"""
    environment = {
        "_EVERSTEP_COMPLETE": "complete_bash",
        "COMP_WORDS": "everstep train mnist/mlp trainer.train_s",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=place, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "trainer.train_steps=4000"), done.stderr


# -- the shells themselves, with what `everstep --install-completion` has written ------------------------------------

READY = {
    # Ctrl-O writes the line that is typed into a file, once what was typed before it is done.
    "bash": """bind -x '"\\C-o": printf "%s" "$READLINE_LINE" > line'\n""",
    "zsh": "show() { print -rn -- $BUFFER > line }\nzle -N show\nbindkey '^O' show\n",
}


@pytest.fixture
def home(place: Path) -> dict[str, str]:
    """The environment of a user with a home of their own, who has `everstep` on the path."""
    program = place / "bin" / "everstep"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m everstep "$@"\n')
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ZDOTDIR"))}
    path = f"{program.parent}:{os.environ['PATH']}"
    return {**kept, "HOME": str(place), "PATH": path, "TERM": "xterm", "LC_ALL": "C.UTF-8"}


def install(shell: str, place: Path, home: dict[str, str]) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here; on Debian and Ubuntu: apt install {shell}")
    command = [shell, "-c", "everstep --install-completion; true"]  # it looks for the shell that it was started from
    done = subprocess.run(command, cwd=place, env=home, capture_output=True, text=True)
    assert f"{shell} completion installed" in done.stdout, done.stderr


@pytest.fixture(params=["bash", "zsh"])
def press_tab(request: pytest.FixtureRequest, place: Path, home: dict[str, str]) -> Iterator[Callable[[str], str]]:
    """Returns what a line becomes when the tab key is pressed at its end."""
    install(request.param, place, home)
    with (place / f".{request.param}rc").open("a") as file:
        file.write(READY[request.param])
    with Terminal([request.param, "-i"], home, 200, 50, place) as terminal:
        terminal.type("echo rea''dy\n")
        terminal.wait_for("ready", 60)

        def press(line: str) -> str:
            typed, left = place / "line", "\x15"
            typed.unlink(missing_ok=True)
            terminal.type(f"{left}{line}\t\x0f")
            terminal.wait_for(lambda _: typed.exists() and typed.read_text().startswith(line), 60)
            return typed.read_text()

        yield press


LINES = {
    "everstep tr": "everstep train ",
    "everstep train regr": "everstep train regression/sine ",
    "everstep train mnist/mlp trainer.train_s": "everstep train mnist/mlp trainer.train_steps=4000 ",
    "everstep train mnist/mlp seed=3 runtime.se": "everstep train mnist/mlp seed=3 runtime.seed=0 ",
    "everstep train mnist/mlp --mode train_and_p": "everstep train mnist/mlp --mode train_and_post_eval ",
    "everstep train --allow": "everstep train --allow-change ",
    "everstep report runs/f": "everstep report runs/first ",
    "everstep runs compare first sw": "everstep runs compare first sweep-sine-1234567890/trials/0 ",
    "everstep export b": "everstep export bin/",
}


@pytest.mark.full
def test_the_tab_key_of_bash_and_zsh(press_tab: Callable[[str], str]) -> None:
    assert {line: press_tab(line) for line in LINES} == LINES


@pytest.mark.full
def test_the_tab_key_of_fish(place: Path, home: dict[str, str]) -> None:
    install("fish", place, home)
    words = {line: becomes.removeprefix(line.rpartition(" ")[0]).strip() for line, becomes in LINES.items()}
    for line, word in words.items():
        done = subprocess.run(
            ["fish", "-c", "complete -C $argv", line], cwd=place, env=home, capture_output=True, text=True
        )
        assert done.stdout.split("\t")[0].split("\n")[0] == word, (line, done.stdout, done.stderr)
