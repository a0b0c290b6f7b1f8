"""What people type who do not know the commands yet: each is refused, and told what to type."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

WRONG = {
    # Commands that other tools have.
    "compare": "Type: everstep runs compare RUN RUN",
    "show": "Type: everstep runs show RUN",
    "info": "Type: everstep runs show RUN",
    "list": "Type: everstep runs (see",
    "ls": "Type: everstep runs (see",
    "rm first": "Type: everstep runs rm RUN",
    "delete first": "Type: everstep runs rm RUN",
    "logs first": "Type: everstep runs watch RUN",
    "resume first": "again resumes its run: everstep train EXPERIMENT, or python train.py",
    "stop first": "Ctrl-C ends a run after a save",
    "fit": "everstep.fit(model, x, y) is a function for your script",
    "init": "Type: everstep new PROJECT",
    "create": "Type: everstep new PROJECT",
    "version": "Type: everstep --version",
    "help": "Type: everstep --help",
    "tensorboard": "tensorboard --logdir runs",
    "serve first": "Type: everstep export RUN",
    "save first": "Type: everstep export RUN",
    "evaluate first": "Type: everstep eval RUN",
    "test first": "Type: everstep eval RUN",
    "infer first": "Type: everstep predict RUN --input",
    "search mnist/quick": "Type: everstep sweep EXPERIMENT KEY=1,2,3",
    "lr-find mnist/quick": "Type: everstep tune learning-rate EXPERIMENT",
    "slurm mnist/quick": "Type: everstep submit EXPERIMENT",
    "models": "Type: everstep experiments",
    "plot first": "Type: everstep report RUN",
    "setup": "Type: everstep doctor",
    "dashboard": "Type: everstep ui",
    "trian mnist/quick": "Did you mean 'train'?",
    "mnist/quick": "Type: everstep train mnist/quick",
    "train.py": "A script is run with Python: python train.py",
    # Words of a command.
    "runs delete first": "type: everstep runs rm first",
    "runs ls": "type: everstep runs list",
    "runs comapre first second": "type: everstep runs compare first second",
    "runs info first": "type: everstep runs show first",
    "runs show frist": "did you mean 'runs/first'?",
    "runs watch frist": "did you mean 'runs/first'?",
    "report frist": "did you mean 'runs/first'?",
    "export frist": "did you mean 'runs/first'?",
    "eval frist": "did you mean 'runs/first'?",
    # Arguments and options.
    "train": "none is given: `everstep experiments` lists them; a script with everstep.fit needs no command",
    "train train.py": "is a script, which needs no command: run it: python train.py",
    "run train.py": "is a script, which needs no command: run it: python train.py",
    "run list": "did you mean everstep runs?",
    "sweep train.py --batch-size 8,16": "a value is written without dashes: batch-size=8,16",
    "sweep mnist/quick --lr 0.1,0.2": "initial_learning_rate=0.1,0.2",
    "train mnist/qick": "did you mean 'mnist/quick'",
    "train mnist/quick --lr 0.1": "initial_learning_rate=0.1",
    "train mnist/quick --epochs 3": "trainer.epochs=3",
    "train mnist/quick --batch-size 64": "task.train_data.global_batch_size=64",
    "train mnist/quick --bs 64": "task.train_data.global_batch_size=64",
    "train mnist/quick epochs=3": "trainer.epochs",
    "train mnist/quick --bakend jax": "did you mean --backend?",
    "train mnist/quick --frobnicate": "No such option: --frobnicate (see: everstep train --help)",
    "predict first new.csv": "--output'; example: everstep predict runs/mnist-local-5f2c7a90b1 --input new.npz",
    "sweep mnist/quick trainer.epochs=1,2 sampler=grid": "'grid', is an option, not a key: write --sampler grid",
}


@pytest.fixture
def with_a_run(everstep: Any) -> Any:
    """Runs `everstep …` in a directory with the run `runs/first`."""
    Path("runs/first").mkdir(parents=True)
    Path("runs/first/run.json").write_text(json.dumps({"id": "a" * 32, "status": "finished"}))
    return everstep


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_is_told_what_to_type(with_a_run: Any, line: str) -> None:
    outcome = with_a_run(*line.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("everstep: error: ")
    assert outcome.err.count("\n") == 1
    assert WRONG[line] in outcome.err


def test_what_is_suggested_exists(everstep: Any) -> None:
    from everstep.cli import commands

    for command in commands.COMMANDS.values():
        for word, line in command.also_typed.items():
            assert word not in commands.COMMANDS
            name, *_ = words = line.removeprefix("everstep ").split()
            below = getattr(commands.load(name), "commands", {})
            assert not below or len(words) == 1 or words[1] in below or words[1].isupper(), line


def test_words_are_typed_for_one_command_only() -> None:
    from everstep.cli import commands

    words = [word for command in commands.COMMANDS.values() for word in command.also_typed]
    assert sorted(words) == sorted({*words})
    assert not {*words} & {*commands._NO_COMMANDS}


def test_a_removal_takes_the_directory_that_is_here(with_a_run: Any) -> None:
    assert "runs/first" in with_a_run("runs", "rm", "first", "--dry-run").out
    Path("first").mkdir()
    outcome = with_a_run("runs", "rm", "first", "--dry-run")
    assert outcome.code == 2
    assert "first: is not a run directory" in outcome.err
