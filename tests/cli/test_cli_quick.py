"""Quick looks from the command line: what the flags set, and what they refuse."""

import re
from pathlib import Path

import pytest
import yaml


def test_flags_are_layers_over_the_configuration(everstep):
    flags = ["--limit-train", "5", "--limit-eval=2", "--sanity-eval", "1"]
    done = everstep("config", "mnist/mlp", *flags)
    values = yaml.safe_load(done.out)
    assert values["task"]["train_data"]["limit_batches"] == 5
    assert values["task"]["validation_data"]["limit_batches"] == 2
    assert values["trainer"]["sanity_validation_steps"] == 1
    assert re.search("limit_batches: 5 +# --limit-train 5\n", done.out)
    wins = everstep("config", "mnist/mlp", "--overfit-batches", "3", "trainer.overfit_batches=4").out
    assert yaml.safe_load(wins)["trainer"]["overfit_batches"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--limit-train", "0"],
            "task.train_data.limit_batches: received 0, must be at least 1 (from --limit-train 0)",
        ),
        (["--limit-train=-1"], "task.train_data.limit_batches: received -1, must be at least 1"),
        (["--limit-train", "abc"], "task.train_data.limit_batches: received 'abc', expected int"),
        (["--limit-eval", "2.5"], "task.validation_data.limit_batches: received 2.5, expected int"),
        (["--overfit-batches", "0"], "trainer.overfit_batches: received 0, must be at least 1"),
        (["--overfit-batches", ""], "--overfit-batches: received '', expected a value"),
        (["--overfit-batches", "x"], "trainer.overfit_batches: received 'x', expected int"),
        (["--sanity-eval=-1"], "trainer.sanity_validation_steps: received -1, must be at least 0"),
        (
            ["--sanity-eval", "2", "--mode", "train"],
            "--mode: received 'train', does not train and evaluate, which --sanity-eval needs",
        ),
        (
            ["--limit-eval", "2", "--overfit-batches", "1"],
            "--limit-eval: received '2', has no effect with --overfit-batches",
        ),
        (["--fast-dev-run", "--max-restarts", "2"], "--max-restarts: received 2, has no effect with --fast-dev-run"),
        (
            ["--fast-dev-run", "--overfit-batches", "2"],
            "--overfit-batches: received '2', has no effect with --fast-dev-run",
        ),
        (["--fast-dev-run", "--limit-train", "2"], "--limit-train: received '2', has no effect with --fast-dev-run"),
        (["--fast-dev-run", "--mode", "eval"], "--mode: received 'eval', does not train, which --fast-dev-run needs"),
        (["--fast-dev-run", "--mode", "dance"], "mode: received 'dance', unknown mode"),
    ],
)
def test_train_refuses(everstep, words, message):
    done = everstep("train", "mnist/mlp", *words)
    assert done.code == 2
    assert done.err.startswith(f"everstep: error: {message}")
    assert done.err.count("\n") == 1
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["batch-size", "--max", "0"], "--max: received '0', expected a whole number from 1 to"),
        (["batch-size", "--max", "abc"], "--max: received 'abc', expected a whole number"),
        (["batch-size", "--max", "1e9"], "--max: received '1e9', expected a whole number"),
        (["batch-size", "--max", "8"], "--max: received 8, is below the first size"),
        (["batch-size", "--start", "100", "--max", "8"], "--max: received 8, is below the first size, 100"),
        (["batch-size", "--start=-1"], "--start: received '-1', expected a whole number"),
        (["batch-size", "--only", "0"], "--only: received '0', expected a whole number"),
        (["batch-size", "--memory", "0"], "--memory: received '0', expected a number above 0"),
        (["batch-size", "--memory=-1"], "--memory: received '-1', expected a number above 0"),
        (["batch-size", "--memory", "nan"], "--memory: received 'nan', expected a number above 0"),
        (["batch-size", "--memory", "1e9"], "--memory: received '1e9', expected a number above 0 and below 1e+06"),
        (["batch-size", "--mode", "dance"], "mode: received 'dance', unknown mode"),
        (["batch-size", "--mode", "eval"], "--mode: received 'eval', nothing is trained then"),
        (["learning-rate", "--min", "0"], "--min: received '0', expected a number above 0"),
        (["learning-rate", "--min=-1"], "--min: received '-1', expected a number above 0"),
        (["learning-rate", "--min", "abc"], "--min: received 'abc', expected a number above 0"),
        (["learning-rate", "--min", "1", "--max", "0.1"], "--min: received '1', must be below --max 0.1"),
        (["learning-rate", "--max", "inf"], "--max: received 'inf', expected a number above 0"),
        (["learning-rate", "--max", "nan"], "--max: received 'nan', expected a number above 0"),
        (["learning-rate", "--steps", "3"], "--steps: received '3', expected a whole number from 10 to 100000"),
        (["learning-rate", "--steps", "1e9"], "--steps: received '1e9', expected a whole number"),
        (["learning-rate", "--out", "nowhere/x.png"], "--out: received 'nowhere/x.png', there is no directory"),
        (["learning-rate", "--out", "x.txt"], "--out: received 'x.txt', expected a file that ends in .png"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_tune_refuses(everstep, words, message):
    done = everstep("tune", words[0], "mnist/mlp", *words[1:])
    assert done.code == 2
    assert done.err.startswith(f"everstep: error: {message}")
    assert done.err.count("\n") == 1
    assert not list(Path.cwd().iterdir())
