"""The command line itself: help and its speed, flags of other tools, exit codes."""

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.gang.processes import free_port

from everstep import gang
from everstep.cli import commands, experiments
from everstep.errors import TrainingError, UsageError
from everstep.model_garden.absl_flags import normalised

pytestmark = pytest.mark.slow

HEAVY = ("keras", "jax", "tensorflow", "torch", "pydantic", "numpy")


def test_help_lists_every_command_with_its_summary(everstep: Any) -> None:
    for words in ([], ["--help"], ["-h"]):
        outcome = everstep(*words)
        assert outcome.code == 0
        assert all(f"{name:12} {text}" in outcome.out for name, (_, text, *_) in commands.COMMANDS.items())


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_explains_itself_with_an_example(everstep: Any, name: str) -> None:
    outcome = everstep(name, "--help")
    assert outcome.code == 0
    assert commands.COMMANDS[name].summary in outcome.out
    assert f"Example: everstep {name}" in outcome.out


def test_every_command_of_a_command_has_an_example(everstep: Any) -> None:
    groups = {name: getattr(commands.load(name), "commands", {}) for name in commands.COMMANDS}
    found = [(group, name) for group, below in groups.items() for name in below]
    assert {("runs", "compare"), ("runs", "watch"), ("runs", "rm"), ("tune", "batch-size")} <= set(found)
    for words in found:
        assert "Example: everstep " in everstep(*words, "--help").out, words


@pytest.mark.parametrize("name", ["train", "flow", "run"])
def test_every_backend_is_named(everstep: Any, name: str) -> None:
    shown = everstep(name, "--help").out.partition("--backend")[2][:200]
    assert all(backend in shown for backend in ("tensorflow", "jax", "torch"))


def test_help_is_fast_and_loads_no_backend() -> None:
    """Compared with a process that only imports typer, so that it holds on a slow machine, too."""
    script = f"""if True:
        import sys
        from everstep.cli.main import main
        code = main(["--help"])
        sys.exit(code or ", ".join(m for m in {HEAVY!r} if m in sys.modules) or 0)"""
    assert _processor_seconds(script) < 3 * _processor_seconds("import typer")


def test_commands_that_only_start_processes_load_no_backend() -> None:
    script = """if True:
        import sys
        from everstep.cli import launch
        from everstep.submit.commands import submit
        from everstep.sweeps.commands import sweep
        sys.exit(", ".join(m for m in ("keras", "jax", "tensorflow", "torch", "orbax") if m in sys.modules) or 0)"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def _processor_seconds(script: str) -> float:
    """Returns the least processor time of several runs, which other work on the machine hardly changes."""
    seconds = []
    for _ in range(4):
        begin = os.times()
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        end = os.times()
        seconds.append(end.children_user + end.children_system - begin.children_user - begin.children_system)
    return min(seconds)


def test_version(everstep: Any) -> None:
    assert everstep("--version").out.startswith("everstep 0.")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["train", "--model_dir=my_dir"], ["train", "--model-dir=my_dir"]),
        (["--params_override=a_b=--c_d", "x_y=1"], ["--params-override=a_b=--c_d", "x_y=1"]),
        (["--config_file", "my_file.yaml", "--no_export"], ["--config-file", "my_file.yaml", "--no-export"]),
        (["--alsologtostderr", "--logtostderr=true", "--noalsologtostderr", "a"], ["a"]),
        (["--v=1", "--v", "2", "--stderrthreshold=info", "--stderrthreshold", "info", "a"], ["a"]),
        (["--", "--a_b", "--v=1"], ["--", "--a_b", "--v=1"]),
        (["--version", "--validate_me"], ["--version", "--validate-me"]),
    ],
)
def test_spellings(given: list[str], wanted: list[str]) -> None:
    assert normalised(given) == wanted


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("trainer.x: no"), 2, "everstep: error: trainer.x: no\n"),
        (TrainingError("it broke"), 1, "everstep: error: it broke\n"),
        (KeyboardInterrupt(), 130, "everstep: interrupted; run the same command again to resume\n"),
        (KeyboardInterrupt("SIGINT: saved"), 130, "everstep: SIGINT: saved\n"),
    ],
)
def test_exit_codes(everstep: Any, monkeypatch: Any, error: Any, code: int, text: str) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(experiments.config, "load_entry_points", fail)
    outcome = everstep("experiments")
    assert (outcome.code, outcome.out, outcome.err) == (code, "", text)


def test_a_bug_shows_where_it_is_in_the_users_code(everstep: Any, monkeypatch: Any) -> None:
    """The first line is the error; frames of libraries are shown with --traceback."""
    monkeypatch.setattr(experiments.config, "load_entry_points", lambda: 1 / 0)
    outcome = everstep("experiments")
    assert outcome.code == 1
    assert outcome.err.startswith("everstep: error: ZeroDivisionError: division by zero\nTraceback of your own code")
    assert __file__ in outcome.err
    assert "cli/main.py" not in outcome.err


@pytest.mark.parametrize(
    "error", [ValueError("\x1b[1mbold\x1b[0m"), UsageError("trainer.x: no"), TrainingError("broke")]
)
def test_every_frame_is_shown_on_demand(everstep: Any, monkeypatch: Any, error: Exception) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(experiments.config, "load_entry_points", fail)
    monkeypatch.setenv("EVERSTEP_TRACEBACK", "0")
    assert "cli/main.py" not in everstep("experiments").err
    assert "cli/main.py" in everstep("experiments", "--traceback").err
    monkeypatch.setenv("EVERSTEP_TRACEBACK", "1")
    assert "cli/main.py" in everstep("experiments").err


def test_colours_of_keras_are_not_shown(everstep: Any, monkeypatch: Any) -> None:
    def fail() -> None:
        raise ValueError("Exception.\n\n\x1b[1mInput 0\x1b[0m is wrong")

    monkeypatch.setattr(experiments.config, "load_entry_points", fail)
    assert everstep("experiments").err.startswith("everstep: error: ValueError: Exception. Input 0 is wrong\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'? (see: everstep --help)"),
        (["train", "--bakend", "jax"], "--bakend"),
        (["train", "mnist/mlp", "--seed", "x"], "--seed"),
        (["eval"], "(see: everstep eval --help)"),
        (["train", "mnist/mlp", "--tpu_platform=x"], "No such option: --tpu-platform; nothing reads it"),
        (["train", "mnist/mlp", "--enable_async_checkpointing=True"], "always written in the background"),
        (["train", "mnist/mlp", "--tf_data_service", "a:1"], "could be resumed exactly"),
    ],
)
def test_mistakes_in_the_command_line(everstep: Any, words: list[str], text: str) -> None:
    outcome = everstep(*words)
    assert outcome.code == 2
    assert outcome.err.startswith("everstep: error: ")
    assert outcome.err.count("\n") == 1
    assert text in outcome.err


def test_of_several_processes_the_first_prints_bad_input(everstep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another one, this process tells the first, which is a thread here, and ends silently."""
    first = gang.Coordinates(f"127.0.0.1:{free_port()}", 0, 2)
    for name, value in ((gang.COORDINATOR, first.address), (gang.PROCESS_ID, "1"), (gang.NUM_PROCESSES, "2")):
        monkeypatch.setenv(name, value)
    heard = []

    def roll_call() -> None:
        answer, connections = gang.roll_call._collect(first, 60)
        heard.append(answer["error"])
        connections[1].close()

    thread = threading.Thread(target=roll_call)
    thread.start()
    outcome = everstep("train", "mnist/nothing")
    thread.join()
    assert (outcome.code, outcome.err) == (2, "")
    assert "mnist/nothing" in heard[0]
    assert f"(on rank 1 (pid {os.getpid()} on " in heard[0]
    outcome = everstep("config", "mnist/nothing")  # has nothing to do with the others
    assert (outcome.code, "mnist/nothing" in outcome.err) == (2, True)
