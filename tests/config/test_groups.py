"""Config groups: Hydra decides which files are used; they are read as all config files are."""

from pathlib import Path
from typing import Any

import hydra
import pytest
from omegaconf import OmegaConf
from tests.config.config_samples import Experiment

from everstep.config import Config, apply
from everstep.config.layers import walk
from everstep.config.sources import read_sources
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

FILES = {
    "main.yaml": "defaults:\n  - task/model: small\n  - speed: slow\n  - _self_\nsteps: 10\n",
    "task/model/small.yaml": "units: 8\nrate: 1e-3\n",
    "task/model/large.yaml": "units: 64\nname: 'large'\n",
    "speed/slow.yaml": "# @package task\nmode: slow\n",
    "speed/fast.yaml": "# @package task\nmode: fast\n",
    "extra/none.yaml": "# @package task\nfree: {a: off, b: None}\n",
    "experiment/wide.yaml": "# @package _global_\ndefaults:\n  - override /task/model: large\nsteps: 20\n",
}


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def composed(conf: Path, *overrides: str, main: bool = True) -> Experiment:
    files = [conf / "main.yaml"] if main else []
    return apply(Experiment(), files, overrides, config_dir=None if main else str(conf))


def test_a_file_brings_the_files_it_lists(conf: Path) -> None:
    config = composed(conf)
    assert (config.task.model.units, config.task.model.rate, config.task.mode, config.steps) == (8, 1e-3, "slow", 10)


def test_choices_change_what_is_brought(conf: Path) -> None:
    config = composed(conf, "task/model=large", "speed=fast", "task.model.rate=0.25")
    assert (config.task.model.units, config.task.model.rate, config.task.mode) == (64, 0.25, "fast")


@pytest.mark.parametrize("choice", ["experiment=wide", "+experiment=wide"])
def test_an_experiment_file_chooses_among_the_others(conf: Path, choice: str) -> None:
    config = composed(conf, choice)
    assert (config.task.model.units, config.task.model.name, config.steps) == (64, "large", 20)


def test_groups_alone_need_no_first_file(conf: Path) -> None:
    config = composed(conf, "task/model=large", "steps=3", main=False)
    assert (config.task.model.units, config.steps, config.task.mode) == (64, 3, "fast")


def test_a_group_can_be_left_out(conf: Path) -> None:
    assert composed(conf, "~speed").task.mode == "fast"


def test_values_in_groups_are_read_as_in_every_file(conf: Path) -> None:
    free: Any = composed(conf, "extra=none").task.free
    assert isinstance(free, Config)
    assert (free.a, free.b) == ("off", None)


@pytest.mark.parametrize("choices", [[], ["+experiment=wide"], ["speed=fast", "task/model=large"], ["~speed"]])
def test_the_order_is_hydras(conf: Path, choices: list[str]) -> None:
    with hydra.initialize_config_dir(config_dir=str(conf), version_base="1.3"):
        expected = OmegaConf.to_container(hydra.compose("main", choices))
    merged: dict[str, Any] = {}
    for layer in read_sources([conf / "main.yaml"], choices).files:
        merged.update(walk(layer.tree))
    assert merged == dict(walk(expected))


def test_every_value_keeps_its_line(conf: Path) -> None:
    (conf / "task/model/large.yaml").write_text("name: 'large'\nunist: 64\n")
    with pytest.raises(UsageError) as error:
        composed(conf, "task/model=large")
    assert (error.value.key, error.value.received) == ("task.model.unist", 64)
    assert error.value.origin == f"{conf}/task/model/large.yaml:2"


@pytest.mark.parametrize(
    ("choice", "key", "remedy"),
    [("task/model=lagre", "task/model=lagre", "did you mean 'large'?"), ("spede=fast", "spede", "")],
)
def test_wrong_choices_name_the_nearest(conf: Path, choice: str, key: str, remedy: str) -> None:
    with pytest.raises(UsageError) as error:
        composed(conf, choice)
    assert error.value.key == key
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults:\n  - task/model: tiny\n", "Could not find 'task/model/tiny'"),
        ("defaults:\n  - no_such_file\n", "no_such_file"),
        ("defaults: 3\n", "broken.yaml"),
        ("defaults: []\nhydra: {searchpath: [pkg://os]}\n", "Hydra's own settings are not used here"),
    ],
)
def test_a_broken_list_names_its_file(conf: Path, text: str, message: str) -> None:
    (conf / "broken.yaml").write_text(text)
    with pytest.raises(UsageError) as error:
        apply(Experiment(), [conf / "broken.yaml"])
    assert message in str(error.value)
    assert str(conf / "broken.yaml") in str(error.value)
    assert "\n" not in str(error.value)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with raises_problem(key=f"--config-dir {tmp_path / 'nowhere'}", reason="no such directory"):
        apply(Experiment(), config_dir=str(tmp_path / "nowhere"))
