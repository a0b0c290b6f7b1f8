"""Nonsense in `trainer.tracking`: one line that names the key, before anything is done."""

import importlib.util

import pytest

import everstep as es
from everstep.cli.main import main
from everstep.extras import install_command
from everstep.testing.problems import raises_problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wandb", "maybe"),
        ("wandb_mode", "sometimes"),
        ("wandb_project", "a/b"),
        ("wandb_entity", "me?"),
        ("wandb_project", 3.5),
        ("jsonl", "perhaps"),
        ("others", ["chat"]),
        ("others", {"chat": 3}),
        ("samples", -1),
        ("samples", 2.5),
        ("samples", "many"),
        ("norms", 2),
        ("histogram_interval", -5),
        ("histogram_interval", "1 epoch"),
        ("wandbb", True),
    ],
)
def test_bad_values_are_named(key, value):
    def use():
        params = es.ExperimentConfig()
        params.override({"trainer": {"tracking": {key: value}}})
        params.validate()

    with raises_problem(key=f"trainer.tracking.{key}", received=value):
        use()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.tracking.samples=-1", "trainer.tracking.samples: received -1, must be at least 0"),
        ("trainer.tracking.wandb_project=a/b", "trainer.tracking.wandb_project: received 'a/b', must not contain"),
        ("trainer.tracking.others={chat: {}}", "trainer.tracking.others.chat: received 'chat', no tracker"),
    ],
)
def test_the_command_ends_with_2_and_leaves_nothing(override, message, tmp_path, capsys):
    directory = tmp_path / "run"
    words = ["train", "mnist/local", "--model-dir", str(directory), "trainer.train_steps=2", override]
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert not directory.exists()


def test_a_missing_package_is_named(tmp_path, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: name != "wandb" and find(name, *more) or None)
    directory = tmp_path / "run"
    words = ["train", "mnist/local", "--model-dir", str(directory), "trainer.tracking.wandb=true"]
    assert main(words) == 2
    assert install_command("wandb") in capsys.readouterr().err.splitlines()[-1]
    assert not directory.exists()
