"""Configs from files and from arguments."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from everstep.config import Config, apply, experiments, get_exp_config, load_entry_points, register_experiment
from everstep.config import registry as known
from everstep.config.difference import differences
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig
from everstep.task.config import TaskConfig
from everstep.testing.problems import raises_problem

from .config_samples import BigModel, Model, Needy, Task, write_config

# -- any config ------------------------------------------------------------------------------------------------------


def test_a_file_of_each_kind(tmp_path: Path):
    expected = Task({"model": {"units": 8}, "layers": [{"units": 1}, {"units": 2}], "mode": "slow"})
    yaml = write_config(tmp_path, expected.to_yaml())
    plain = write_config(tmp_path, json.dumps(expected.as_dict()), "c.json")
    toml = write_config(tmp_path, "mode = 'slow'\nlayers = [{units = 1}, {units = 2}]\n[model]\nunits = 8\n", "c.toml")
    assert Task.from_yaml(yaml) == expected
    assert Task.from_json(plain) == expected
    assert Task.from_json(str(yaml)) == expected
    assert Task.from_yaml(toml) == expected
    assert type(Task.from_yaml(yaml).layers[1]) is Model


def test_files_may_set_few_values(tmp_path: Path):
    assert Task.from_yaml(write_config(tmp_path, "")) == Task()
    assert Needy.from_yaml(write_config(tmp_path, "name: n")) == Needy(name="n")


def test_an_open_config_takes_every_key_of_a_file(tmp_path: Path):
    config = Config.from_yaml(write_config(tmp_path, "a: {b: 1}\nc: [x]"))
    assert config.a.b == 1
    assert config.as_dict() == {"a": {"b": 1}, "c": ["x"]}


def test_what_is_wrong_is_found_with_its_line(tmp_path: Path):
    path = write_config(tmp_path, "mode: slow\nmodel:\n  units: many\n  rat: 1\nlayers:\n- {}\n- units: x\n")
    with pytest.raises(UsageError) as caught:
        Task.from_yaml(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"model.units: received 'many', expected int (from {path}:3)"
    assert lines[1].startswith("model.rat: received 1, unknown key: did you mean 'rate'")
    assert lines[1].endswith(f"(from {path}:4)")
    assert lines[2] == f"layers[1].units: received 'x', expected int (from {path}:7)"
    assert len(lines) == 3


def test_what_is_missing_is_found(tmp_path: Path):
    path = write_config(tmp_path, "size: 2")
    with raises_problem(key="name", reason="is required", origin=str(path)):
        Needy.from_yaml(path)
    with raises_problem(reason="does not exist"):
        Task.from_json(tmp_path / "no.json")


# -- arguments -------------------------------------------------------------------------------------------------------


def test_arguments_are_for_the_fields_of_the_class_itself():
    assert Model.from_args(8, 0.1, name="n") == Model(units=8, rate=0.1, name="n")
    assert BigModel.from_args(5, units=7) == BigModel(depth=5, units=7)
    assert Needy.from_args("n") == Needy(name="n")
    assert Task.from_args({"units": 3}).model == Model(units=3)
    assert Config.from_args(a=1).as_dict() == {"a": 1}
    assert Model.from_args() == Model()


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda: BigModel.from_args(1, 2), {"key": "BigModel.from_args", "reason": "2 values, .* declares depth$"}),
        (lambda: Config.from_args(1), {"key": "Config.from_args", "reason": "1 values, .* declares no field"}),
        (lambda: Model.from_args(1, units=2), {"key": "units", "reason": "by position and by name"}),
        (lambda: Model.from_args("x"), {"key": "units", "received": "x", "origin": "Model.from_args"}),
        (lambda: Model.from_args(unist=2), {"key": "unist", "received": 2, "reason": "unknown key"}),
        (lambda: Needy.from_args(), {"key": "name", "reason": "is required"}),
    ],
)
def test_arguments_that_do_not_fit(make: Any, fields: dict[str, Any]):
    with raises_problem(**fields):
        make()


# -- experiments -----------------------------------------------------------------------------------------------------

load_entry_points()
OPTIMIZATION = "trainer.optimizer_config"
OVERRIDES = [
    [],
    ["trainer.epochs=3", "runtime.loss_scale=dynamic", "task.name=off"],
    [
        f"{OPTIMIZATION}.optimizer.type=adamw",
        f"{OPTIMIZATION}.optimizer.adamw.exclude_from_weight_decay=[bias, '1e-3', 'a: b']",
        f"{OPTIMIZATION}.warmup={{type: linear, linear: {{warmup_steps: 5}}}}",
    ],
    [
        f"{OPTIMIZATION}.learning_rate.type=stepwise",
        f"{OPTIMIZATION}.learning_rate.stepwise={{boundaries: [10, 20], values: [1, 1e-3, 1e-7]}}",
        f"{OPTIMIZATION}.optimizer.type=sgd",
    ],
]


def stored(config: Config, name: str) -> str:
    return f"experiment: {name}\nimports: [some.module]\ngin: |\n  a.b = 1\n{config.to_yaml()}"


@pytest.mark.parametrize("overrides", OVERRIDES)
@pytest.mark.parametrize("name", experiments())
def test_a_stored_configuration_comes_back(tmp_path: Path, name: str, overrides: list[str]):
    config = apply(get_exp_config(name), overrides=overrides)
    again = ExperimentConfig.from_yaml(write_config(tmp_path, stored(config, name)))
    assert differences(config, again) == []
    assert again.to_yaml() == config.to_yaml()
    assert type(again.task) is type(config.task)
    assert type(again.task.model) is type(config.task.model)
    as_json = write_config(tmp_path, json.dumps({"experiment": name, **config.as_dict()}), "c.json")
    assert ExperimentConfig.from_json(as_json).to_yaml() == config.to_yaml()


@dataclasses.dataclass
class Layer(Config):
    units: int = 1


@dataclasses.dataclass
class Wide(Layer):
    width: float = 2.0


@dataclasses.dataclass
class Stack(TaskConfig):
    layers: list[Layer] = [Layer(), Wide()]
    shape: tuple[int, ...] = (1, 2)
    best: Layer = Wide()


@dataclasses.dataclass
class Own(ExperimentConfig):
    extra: int = 1


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_experiments", dict(known._experiments))
    register_experiment("own/stack")(lambda: ExperimentConfig(task=Stack()))
    register_experiment("own/own")(lambda: Own(task=Stack(), extra=2))
    register_experiment("own/layer")(Layer)


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    "overrides",
    [
        ["task.layers[1].width=5", "task.best.width=3"],
        ["task.layers=[{units: 4}]", "task.shape=[]"],
        ["task.layers=[{units: 4}, {units: 5}, {}]"],
        ["task.layers=[]", "task.shape=[3, 4, 5]"],
    ],
)
def test_lists_and_the_subclasses_in_them_come_back(tmp_path: Path, overrides: list[str]):
    config = apply(get_exp_config("own/stack"), overrides=overrides)
    again: Any = ExperimentConfig.from_yaml(write_config(tmp_path, stored(config, "own/stack")))
    assert again.to_yaml() == config.to_yaml()
    assert [type(layer) for layer in again.task.layers] == [type(layer) for layer in config.task.layers]
    assert type(again.task.best) is Wide
    assert type(again.task.shape) is tuple


def test_a_file_that_names_no_experiment_is_of_the_class_itself(tmp_path: Path):
    path = write_config(tmp_path, "trainer: {train_steps: 7}\nruntime: {seed: '${trainer.train_steps}'}")
    config = ExperimentConfig.from_yaml(path)
    assert (config.trainer.train_steps, config.runtime.seed) == (7, 7)
    assert type(config.task) is TaskConfig
    assert Own.from_yaml(write_config(tmp_path, "extra: 3")).extra == 3


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    ("text", "line", "fields"),
    [
        ("experiment: mnist/mpl", 1, {"key": "experiment", "reason": "no experiment", "remedy": "'mnist/mlp'"}),
        ("\nexperiment: 3", 2, {"key": "experiment", "received": 3}),
        ("experiment: mnist/mlp\ntask:\n  model: {unist: 3}", 3, {"key": "task.model.unist", "remedy": "'units'"}),
        ("experiment: mnist/mlp\ntask: {layers: []}", 2, {"key": "task.layers", "reason": "unknown key"}),
        ("experiment: own/layer", None, {"key": "experiment 'own/layer'", "reason": "received Layer"}),
        ("trainer: {train_steps: no}", 1, {"key": "trainer.train_steps", "received": "no"}),
        ("experimnet: mnist/mlp", 1, {"key": "experimnet", "reason": "unknown key"}),
    ],
)
def test_files_that_are_no_experiments(tmp_path: Path, text: str, line: int | None, fields: dict[str, Any]):
    path = write_config(tmp_path, text)
    with raises_problem(origin=f"{path}:{line}" if line else "", **fields):
        ExperimentConfig.from_yaml(path)


@pytest.mark.usefixtures("stack")
def test_a_subclass_requires_its_own_class(tmp_path: Path):
    assert Own.from_yaml(write_config(tmp_path, "experiment: own/own\ntask: {shape: [9]}")).extra == 2
    path = write_config(tmp_path, "experiment: own/stack")
    with raises_problem(key=str(path), reason="expected Own, but its experiment has ExperimentConfig"):
        Own.from_yaml(path)
