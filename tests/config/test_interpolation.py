"""Interpolation: a reference means the value at the end of all layers."""

from pathlib import Path

import pytest
from tests.config.config_samples import Experiment, Task

from everstep import redaction
from everstep.config import apply
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_it_follows_a_later_layer(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "steps: 5\ntask: {model: {units: '${steps}'}}\n")
    assert apply(Experiment(), [path]).task.model.units == 5
    assert apply(Experiment(), [path], ["steps=9"]).task.model.units == 9
    assert apply(Experiment(), [path], ["steps=9", "task.model.units=2"]).task.model.units == 2


def test_it_reads_the_experiments_own_values() -> None:
    assert apply(Experiment(steps=7), overrides=["task.model.units=${steps}"]).task.model.units == 7


def test_references_may_be_chained_relative_and_inside_text_and_lists() -> None:
    overrides = [
        "steps=4",
        "task.model.units=${steps}",
        "task.model.rate=${.units}",
        "task.model.name='run-${steps}'",
        "task.model.shape=[1, '${steps}']",
        "task.extra=${task.model}",
    ]
    config = apply(Experiment(), overrides=overrides)
    assert (config.task.model.rate, config.task.model.name, config.task.model.shape) == (4.0, "run-4", (1, 4))
    assert config.task.extra == config.task.model


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "here")
    assert apply(Task(), overrides=["model.name=${oc.env:WHERE}"]).model.name == "here"
    assert apply(Task(), overrides=["model.name=${oc.env:NOWHERE,there}"]).model.name == "there"
    monkeypatch.setenv("UNITS", "12")
    assert apply(Task(), overrides=["model.units=${oc.decode:${oc.env:UNITS}}"]).model.units == 12


def test_a_secret_is_used_but_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2-hunter2")
    config = apply(Task(), overrides=["model.name=${secret:MY_SECRET}"])
    assert config.model.name == "hunter2-hunter2"
    assert redaction.tree(config.as_dict())["model"]["name"] == "${secret:MY_SECRET}"


def test_text_that_only_looks_like_a_reference() -> None:
    config = apply(Experiment(), overrides=[r"task.model.name='\${steps}'", "task.model.units=${steps}"])
    assert config.task.model.name == "${steps}"
    own = Experiment()
    own.task.model.name = "${steps}"  # set in Python: text
    assert apply(own, overrides=["task.model.units=${steps}"]).task.model.name == "${steps}"


def test_a_reference_that_is_overridden_is_never_resolved() -> None:
    assert apply(Experiment(), overrides=["steps=${nowhere}", "steps=3"]).steps == 3


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("steps=${no.such.key}", "steps: cannot resolve '${no.such.key}': Interpolation key 'no.such.key' not found"),
        ("steps=${steps}", "Recursive interpolation detected"),
        ("steps=${oc.env:NO_SUCH_VARIABLE}", "'NO_SUCH_VARIABLE' not found"),
        ("steps=${secret:NO_SUCH_VARIABLE}", "'NO_SUCH_VARIABLE' is not set"),
        ("steps=${eval:1}", "Unsupported interpolation type eval"),
        ("steps='${steps'", "cannot resolve '${steps': not well-formed"),
        ("steps=${task.mode}", "steps: received 'fast', expected int"),
        ("stepz=${steps}", "stepz: received 0, unknown key: did you mean 'steps'"),
    ],
)
def test_a_reference_that_cannot_be_resolved_is_named(override: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        apply(Experiment(), overrides=[override])
    assert text in str(error.value)
    assert f"(from override {override!r})" in str(error.value)


def test_references_in_a_circle(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "steps: ${task.model.units}\ntask:\n  model:\n    units: ${steps}\n")
    with raises_problem(key="steps", reason="cannot resolve .* Recursive interpolation detected") as error:
        apply(Experiment(), [path])
    assert f"(from {path}:1)" in str(error.value)
    assert f"(from {path}:4)" in str(error.value)
