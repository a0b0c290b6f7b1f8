"""The config file of a run: nested values, defaults, and what is wrong with it in one line."""

import pytest
import yaml
from components_project import config

from everstep.components import ConfigNotFound, ConfigStruct, FoundMultipleConfigs, load_config_file
from everstep.errors import UsageError
from everstep.projects.components.config import find_config, load_run_config, require_epochs, training_values
from everstep.testing.problems import raises_problem


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
    with raises_problem(key="model_builder.activaton", reason="is read but not set") as refused:
        struct.model_builder.activaton  # noqa: B018
    assert "'activation'" in refused.value.remedy
    assert refused.value.origin.endswith("config.yaml:1")
    assert getattr(struct.model_builder, "activaton", 3) == 3
    assert not hasattr(struct, "mine")


def test_struct_of_values_of_ones_own():
    struct = ConfigStruct({"a": {"b": [1, 2]}})
    struct.c = {"d": 4}
    assert struct.as_dict() == {"a": {"b": [1, 2]}, "c": {"d": 4}}
    assert dict(struct.leaves()) == {"a.b": [1, 2], "c.d": 4}
    assert struct == ConfigStruct(struct.as_dict())


@pytest.mark.parametrize(
    ("text", "place"),
    [("seed: [1\nx: 2\n", ", line 2"), ("seed: 1\nseed: 2\n", ", line 2"), ("- seed: 1\n", "")],
    ids=["syntax", "a key twice", "a list"],
)
def test_files_that_cannot_be_read(tmp_path, text, place):
    path = written(tmp_path, text)
    with raises_problem(key=f"{path}{place}"):
        load_config_file(path)


@pytest.mark.parametrize(
    ("text", "key", "remedy", "line"),
    [
        ("epoch: 3\n", "epoch", "'epochs'", 1),
        ("epcohs: 3\n", "epcohs", "'epochs'", 1),
        ("seed: 1\ndata_loader_clas: a.B\n", "data_loader_clas", "'data_loader_class'", 2),
        ("seed: 1\nexport:\n  metrics: loss\n", "export.metrics", "'metric'", 3),
        ("seed: 1\nexport: val_loss\n", "export", "", 2),
        ("seed: one\n", "seed", "", 1),
    ],
)
def test_keys_and_values_that_are_refused(tmp_path, text, key, remedy, line):
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        load_config_file(path)
    assert refused.value.key == key
    assert refused.value.origin == f"{path}:{line}"
    assert remedy in refused.value.remedy


def test_a_key_that_may_stand_for_a_missing_one_is_mentioned(tmp_path):
    path = written(tmp_path, "num_epochs: 3\nloader_class: a.B\n")
    with pytest.raises(UsageError) as refused:
        load_run_config(path)
    remedies = {problem.key: problem.remedy for problem in refused.value.problems}
    assert remedies["data_loader_class"] == "if 'loader_class' is meant, rename it"
    assert remedies["project_name"].startswith("set the name of the project")
    with pytest.raises(UsageError) as refused:
        require_epochs(load_config_file(path))
    assert refused.value.remedy == "if 'num_epochs' is meant, rename it"


def test_a_known_key_without_a_value_has_its_default(tmp_path):
    struct = load_config_file(written(tmp_path, "seed:\nexport:\nepochs:\nmodel_builder: {lr: }\nmine:\n"))
    assert (struct.seed, struct.export.mode, struct.epochs) == (101, "min", None)
    assert struct.model_builder.lr is None
    assert struct.mine is None


def test_keys_may_have_the_names_of_methods(tmp_path):
    struct = load_config_file(written(tmp_path, "model_builder: {origin: 1, replace: 2, lock: 3}\nvalidate: 4\n"))
    assert (struct.model_builder.origin, struct.model_builder.replace, struct.model_builder.lock) == (1, 2, 3)
    assert struct.validate == 4


def test_a_key_of_the_projects_own_may_resemble_one_that_is_set(tmp_path):
    struct = load_config_file(written(tmp_path, "seed: 1\nseeds: [1, 2]\naugmentation: {flip: true}\n"))
    assert struct.seeds == [1, 2]


def test_exactly_one_file(tmp_path):
    runs = tmp_path / "runs"
    (runs / "first").mkdir(parents=True)
    with raises_problem(key="run_name", reason="contains no run 'frist'", remedy="did you mean 'first'"):
        find_config(runs / "frist")
    with raises_problem(ConfigNotFound, reason=r"contains no \*.yaml"):
        find_config(runs / "first")
    (runs / "first" / "config.yml").touch()
    with raises_problem(ConfigNotFound, remedy="rename 'config.yml'"):
        find_config(runs / "first")
    (runs / "first" / "one.yaml").touch()
    assert find_config(runs / "first").name == "one.yaml"
    (runs / "first" / "two.yaml").touch()
    with raises_problem(FoundMultipleConfigs, reason="one.yaml, two.yaml"):
        find_config(runs / "first")


@pytest.mark.parametrize(
    ("changes", "key", "fields"),
    [
        ({"src_code_path": None}, "src_code_path", {"reason": "missing"}),
        ({"data_loader_class": None}, "data_loader_class", {"reason": "missing", "remedy": "'dataset.DataLoader'"}),
        ({"project_name": None}, "project_name", {"reason": "missing"}),
        ({"project_name": 12}, "project_name", {"received": 12}),
        ({"project_name": " "}, "project_name", {"reason": "must not be empty"}),
        ({"epochs": 0}, "epochs", {"received": 0, "reason": "must be at least 1"}),
        ({"epochs": "10"}, "epochs", {"received": "10"}),
        ({"batch_size": True}, "batch_size", {"received": True}),
        ({"seed": -1}, "seed", {"received": -1}),
        ({"export": {"mode": "minimum"}}, "export.mode", {"received": "minimum", "reason": "must be 'min' or 'max'"}),
        ({"export": {"metric": 3}}, "export.metric", {"received": 3, "reason": "must be the name of a metric"}),
        ({"do_train_augmentation": "yes"}, "do_train_augmentation", {"received": "yes"}),
        ({"do_train_augmentation": True}, "augmentor_class", {"reason": "missing, but do_train_augmentation is true"}),
        ({"model_builder_class": "ModelBuilder"}, "model_builder_class", {"reason": "must be a module and a class"}),
        ({"model_builder_class": ""}, "model_builder_class", {"reason": "must be a module and a class"}),
        (
            {"evaluator_class": "evaluator_class: evaluation.Evaluator"},
            "evaluator_class",
            {"reason": "contains a key", "remedy": "write evaluator_class: evaluation.Evaluator"},
        ),
    ],
)
def test_values_that_no_run_can_have(tmp_path, changes, key, fields):
    path = written(tmp_path, yaml.safe_dump(config(**changes)))
    with raises_problem(**fields) as refused:
        load_run_config(path)
    assert [problem.key for problem in refused.value.problems] == [key]
    assert refused.value.origin.startswith(str(path))


def test_all_problems_are_reported_at_once(tmp_path):
    path = written(tmp_path, yaml.safe_dump(config(epochs="10", seed=-1, project_name=None, epoch=3)))
    with pytest.raises(UsageError) as refused:
        load_run_config(path)
    assert {problem.key for problem in refused.value.problems} == {"epochs", "seed", "project_name"}


def test_a_complete_configuration_is_accepted(tmp_path):
    assert load_run_config(written(tmp_path, yaml.safe_dump(config()))).epochs == 2


def test_what_identifies_a_training_does_not_change(tmp_path):
    """Exports and checkpoints of earlier versions compare these values, in this order."""
    values = training_values(load_config_file(written(tmp_path, yaml.safe_dump(config(mine={"b": 1, "a": None})))))
    assert list(values) == [
        "input_height", "input_width", "src_code_path", "data_loader_class", "model_builder_class",
        "preprocessor_class", "batch_size", "data_loader", "model_builder", "preprocessor", "export", "mine",
    ]  # fmt: skip
    assert values["mine"] == {"b": 1}
