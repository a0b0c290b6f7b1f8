"""`everstep runs list --sort`."""

import json
import re
from typing import Any

import pytest

from everstep.run.record import Run

METRICS = {
    "a": {"validation": {"validation_loss": 0.5, "accuracy": 0.9}, "train": {"accuracy": 0.91}},
    "b": {"validation": {"validation_loss": 0.25, "accuracy": float("nan")}, "train": {"accuracy": 0.99}},
    "c": {"train": {"training_loss": 3.0, "accuracy": 0.2}},
    "d": {"validation": {"validation_loss": 1.5, "accuracy": 0.1}},
    "e": {},
}


@pytest.fixture
def five(tmp_path: Any) -> None:
    for number, (name, metrics) in enumerate(METRICS.items()):
        run = Run.open(tmp_path / "runs" / name, f"exp/{'xyxyx'[number]}", "jax")
        run.begin(0, "", code={})
        run.update((7, 30, 9, 100, 1)[number], 0, metrics)
        run.finish("finished", "done")


def names(everstep: Any, *words: str) -> str:
    lines = everstep("runs", "list", *words).out.splitlines()[1:]
    return "".join(re.match(r"runs/(\w)", line)[1] for line in lines)  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["validation_loss"], "badce"),
        (["-validation_loss"], "dabce"),
        (["validation_loss", "--descending"], "dabce"),
        (["accuracy"], "dcabe"),  # of training where nothing was validated; NaN is as good as none
        (["-accuracy"], "acdbe"),
        (["validation_accuracy"], "dabce"),
        (["-train_accuracy"], "bacde"),
        (["training_loss"], "cabde"),
        (["val_loss"], "badce"),  # as Keras says it
        (["-val_accuracy"], "adbce"),
        (["loss"], "badce"),  # of the validation where there is one
        (["step"], "eacbd"),
        (["-step"], "dbcae"),
        (["experiment"], "acebd"),
    ],
)
def test_the_order(everstep: Any, five: None, words: list[str], order: str) -> None:
    assert names(everstep, "--sort", *words) == order


def test_the_metric_is_a_column_and_not_said_twice(everstep: Any, five: None) -> None:
    header, first, *_, last = everstep("runs", "--sort", "validation_loss").out.splitlines()
    assert re.split(r"\s{2,}", header)[-2:] == ["validation_loss", "METRICS"]
    assert re.split(r"\s{2,}", first)[-2:] == ["0.25", "accuracy=NaN"]
    assert re.split(r"\s{2,}", last)[-1] == "-"
    assert "validation_loss" not in everstep("runs", "--sort", "step").out.splitlines()[0]


def test_json_and_age(everstep: Any, five: None) -> None:
    found = json.loads(everstep("runs", "--sort", "-accuracy", "--json").out)
    assert [one["directory"] for one in found] == [f"runs/{name}" for name in "acdbe"]
    newest, *_, oldest = names(everstep, "--sort", "age")
    assert names(everstep, "--sort=-age") == "".join(reversed(names(everstep, "--sort", "age")))
    assert newest == "e"
    assert oldest == "a"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sort", "acuracy"], "--sort: received 'acuracy', no run has such a metric: did you mean 'accuracy'?"),
        (["--sort", "zz"], "known: 'accuracy', 'age', 'experiment', 'step', 'training_loss', 'validation_loss'"),
        (["--sort", ""], "--sort: received '', expected a metric"),
        (["--sort", "-"], "--sort: received '-'"),
        (["--sort", "-step", "--descending"], "--sort -step means the same"),
        (["--descending"], "nothing to sort by"),
    ],
)
def test_bad_requests(everstep: Any, five: None, words: list[str], message: str) -> None:
    outcome = everstep("runs", "list", *words)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err


def test_where_there_is_no_run_there_is_nothing_to_sort(everstep: Any) -> None:
    assert "no runs in 'runs'" in everstep("runs", "--sort", "accuracy").out
