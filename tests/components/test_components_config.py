"""The config file of a run: nested values, defaults, and what is wrong with it in one line."""

import re

import pytest
from components_project import config

from everstep.components import ConfigNotFound, ConfigStruct, FoundMultipleConfigs, load_config_file
from everstep.components.config_checks import check_config
from everstep.components.config_file import find_config
from everstep.errors import UsageError


def written(folder, text):
    (folder / "config.yaml").write_text(text)
    return folder / "config.yaml"


def test_nested_values_defaults_and_unset_keys(tmp_path):
    path = written(tmp_path, "model_builder:\n  optimizer: {initial_lr: 1e-3}\nexport: {mode: max}\nmine: {a: 1}\n")
    struct = load_config_file(path)
    assert struct.model_builder.optimizer.initial_lr == 0.001
    assert (struct.export.metric, struct.export.mode, struct.seed) == ("val_loss", "max", 101)
    assert struct.input_channels is None
    assert struct.considerations.users is None
    assert struct.model_parameters.data.link is None
    assert struct.mine.a == 1
    assert not struct.augmentor


def test_a_key_that_is_not_there_is_named_with_its_section_and_file(tmp_path):
    struct = load_config_file(written(tmp_path, "model_builder: {activation: relu}\n"))
    with pytest.raises(UsageError, match=r"model_builder.activaton: .*did you mean 'activation'.*config.yaml"):
        struct.model_builder.activaton  # noqa: B018
    assert getattr(struct.model_builder, "activaton", 3) == 3
    assert not hasattr(struct, "mine")


def test_struct_of_values_of_ones_own():
    struct = ConfigStruct({"a": {"b": [1, 2]}})
    struct.c = {"d": 4}
    assert struct.as_dict() == {"a": {"b": [1, 2]}, "c": {"d": 4}}
    assert dict(struct.leaves()) == {"a.b": [1, 2], "c.d": 4}
    assert struct == ConfigStruct(struct.as_dict())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3\n", r"epoch: is no key; did you mean 'epochs'\? \(from .*config.yaml, line 1\)"),
        ("seed: 1\ndata_loader_clas: a.B\n", r"data_loader_clas: .*'data_loader_class'.*line 2"),
        ("seed: 1\nexport: val_loss\n", r"export: received 'val_loss', expected keys with values .*line 2"),
        ("seed: [1\nx: 2\n", r"config.yaml.*line"),
        ("seed: 1\nseed: 2\n", r"config.yaml.*'seed' is given twice"),
        ("- seed: 1\n", r"config.yaml: expected keys with values"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    with pytest.raises(UsageError) as refused:
        load_config_file(written(tmp_path, text))
    assert re.search(message, str(refused.value), re.DOTALL)


def test_a_key_of_the_projects_own_may_resemble_one_that_is_set(tmp_path):
    struct = load_config_file(written(tmp_path, "seed: 1\nseeds: [1, 2]\naugmentation: {flip: true}\n"))
    assert struct.seeds == [1, 2]


def test_exactly_one_file(tmp_path):
    runs = tmp_path / "runs"
    (runs / "first").mkdir(parents=True)
    with pytest.raises(UsageError, match="no run 'frist' in .*did you mean 'first'"):
        find_config(runs / "frist")
    with pytest.raises(ConfigNotFound, match=r"no \*.yaml"):
        find_config(runs / "first")
    (runs / "first" / "config.yml").touch()
    with pytest.raises(ConfigNotFound, match="rename 'config.yml'"):
        find_config(runs / "first")
    (runs / "first" / "one.yaml").touch()
    assert find_config(runs / "first").name == "one.yaml"
    (runs / "first" / "two.yaml").touch()
    with pytest.raises(FoundMultipleConfigs, match="one.yaml, two.yaml"):
        find_config(runs / "first")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"src_code_path": None}, "src_code_path: missing"),
        ({"data_loader_class": None}, "data_loader_class: missing; .*'dataset.DataLoader'"),
        ({"project_name": None}, "project_name: missing"),
        ({"project_name": 12}, "project_name: received 12.*quote"),
        ({"epochs": 0}, "epochs: received 0, expected a whole number"),
        ({"epochs": "10"}, "epochs: received '10'"),
        ({"batch_size": True}, "batch_size: received True"),
        ({"seed": -1}, "seed: received -1"),
        ({"export": {"mode": "minimum"}}, "export.mode: received 'minimum', expected 'min' or 'max'"),
        ({"do_train_augmentation": "yes"}, "do_train_augmentation: received 'yes', expected true or false"),
        ({"do_train_augmentation": True}, "augmentor_class: missing, but do_train_augmentation is true"),
        ({"model_builder_class": "ModelBuilder"}, "model_builder_class: received 'ModelBuilder', expected a module"),
        (
            {"evaluator_class": "evaluator_class: evaluation.Evaluator"},
            "evaluator_class: .*which has a key in it; probably meant: evaluator_class: evaluation.Evaluator",
        ),
    ],
)
def test_values_that_no_run_can_be_made_of(tmp_path, changes, message):
    import yaml

    path = written(tmp_path, yaml.safe_dump(config(**changes)))
    with pytest.raises(UsageError) as refused:
        check_config(load_config_file(path))
    assert re.search(message + r".*\(from .*config\.yaml", str(refused.value))
    assert "\n" not in str(refused.value)


def test_the_seeds_configuration_is_accepted(tmp_path):
    import yaml

    check_config(load_config_file(written(tmp_path, yaml.safe_dump(config()))))
