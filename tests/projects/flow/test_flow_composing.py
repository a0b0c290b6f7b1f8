"""The config directory: blocks along the class chain, layers, references, overrides; all problems are reported."""

import pytest
from flow_project import write_project

from everstep.optim import OptimizationConfig
from everstep.projects.flow.settings import compose, optimizer_key
from everstep.testing.problems import raises_problem

CHAIN = ("Numbers_B", "Numbers_A", "FlowTask")
TASKS = ("Numbers_A", "Numbers_B", "OwnRun")


@pytest.fixture
def config(tmp_path):
    return write_project(tmp_path / "project") / "config"


def composed(config, *overrides, chain=CHAIN):
    return compose(config, chain, TASKS, overrides)


def local(config, name, text):
    path = config / "local" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_block_inherits_along_the_chain(config):
    settings = composed(config)
    assert settings.params.epoch == 3
    assert settings.params.batch_size == 16
    assert settings.params.seed == 42
    assert settings.shown_chain == "Numbers_B <- Numbers_A <- FlowTask"
    assert composed(config, chain=CHAIN[1:]).params.epoch == 2


def test_a_task_without_a_block_has_that_of_its_base(config):
    assert composed(config, chain=("OwnRun", *CHAIN[1:])).params.epoch == 2


def test_references_are_answered_in_the_block_that_inherits(config):
    assert composed(config, "Numbers_B.widths.first=7").params.widths.second == 7


def test_local_files_win_and_overrides_win_over_them(config):
    local(config, "parameters.yaml", "Numbers_B: {epoch: 8, batch_size: 4}\n")
    assert composed(config).params.epoch == 8
    settings = composed(config, "Numbers_B.epoch=1")
    assert (settings.params.epoch, settings.params.batch_size) == (1, 4)


def test_an_override_of_the_base_reaches_what_does_not_set_it_itself(config):
    params = composed(config, "Numbers_A.batch_size=5", "Numbers_A.epoch=9").params
    assert (params.batch_size, params.epoch) == (5, 3)


def test_values_are_added_and_dropped_as_in_hydra(config):
    params = composed(config, "+Numbers_B.extra=1", "~Numbers_B.widths").params
    assert params.extra == 1
    assert "widths" not in params


def test_the_optimizer_is_typed_and_a_block_may_change_it(config):
    assert composed(config).optimizer.optimizer.type == "sgd"
    local(config, "parameters.yaml", "Numbers_B: {optimizer: {optimizer: {type: adam}}}\n")
    settings = composed(config, "optimizer.learning_rate.constant.learning_rate=0.5")
    assert settings.optimizer.optimizer.type == "adam"
    assert settings.optimizer.learning_rate.constant.learning_rate == 0.5
    assert "optimizer" not in settings.params


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        ("{name: sgd, learning_rate: 0.05}", {"type": "sgd", "rate": 0.05, "momentum": 0.0}),
        ("name: SGD\nmomentum: 0.9\nlearning_rate: 0.05\n", {"type": "sgd", "rate": 0.05, "momentum": 0.9}),
        ("learning_rate: 0.05\noptimizer: {type: sgd}\n", {"type": "sgd", "rate": 0.05, "momentum": 0.0}),
        ("learning_rate: 0.05\noptimizer: sgd\n", {"type": "sgd", "rate": 0.05, "momentum": 0.0}),
    ],
)
def test_an_optimizer_may_be_written_as_its_name_and_arguments(config, text, optimizer):
    local(config, "optimizer.yaml", text)
    found = composed(config).optimizer
    shown = {"type": found.optimizer.type, "rate": found.learning_rate.get().learning_rate}
    assert {**shown, "momentum": found.optimizer.get().momentum} == optimizer
    assert composed(config, "optimizer.optimizer.type=adam", "optimizer.learning_rate=1").optimizer.as_dict() == (
        OptimizationConfig({"learning_rate": 1}).as_dict()
    )


def test_an_override_may_name_the_optimizer(config):
    assert composed(config, "optimizer=adam").optimizer.optimizer.type == "adam"


@pytest.mark.parametrize(
    ("name", "key", "kind", "value"),
    [
        ("lr", "optimizer.learning_rate", "", "0.5"),
        ("Learning_Rate", "optimizer.learning_rate", "", "0.5"),
        ("optimiser", "optimizer.optimizer.type", "", "adam"),
        ("weight_decay", "optimizer.optimizer.TYPE.weight_decay_rate", "adamw", "0.5"),
        ("clipnorm", "optimizer.optimizer.TYPE.clipnorm", "sgd", "0.5"),
        ("momentum", "optimizer.optimizer.TYPE.momentum", "sgd", "0.5"),
    ],
)
def test_keys_that_are_advised_for_the_optimizer_exist(config, name, key, kind, value):
    assert optimizer_key(name) == key
    composed(config, f"{key.replace('TYPE', kind)}={value}")


@pytest.mark.parametrize("name", ["type", "depth", "samples", "rate"])
def test_other_names_are_not_taken_for_the_optimizers(name):
    assert optimizer_key(name) == ""


@pytest.mark.parametrize(
    ("text", "misspelt"),
    [
        ("Own_Run: {epoch: 1}\n", {"Own_Run": "'OwnRun'"}),
        ("OwnRn: {epoch: 1}\n", {"OwnRn": "'OwnRun'"}),
        ("OwnRn: {size: 1}\nOwnRun: {size: '${OwnRn.size}'}\n", {}),
        ("OwnRn: {epoch: 1}\nOwnRun: {epoch: 1}\n", {}),
        ("Numbers_C: {epoch: 1}\nmine: {epoch: 1}\n", {}),
    ],
)
def test_a_block_that_is_probably_the_tasks_is_told(config, text, misspelt):
    local(config, "parameters.yaml", text)
    found = composed(config, chain=("OwnRun", *CHAIN[1:])).misspelt
    assert {problem.key: problem.remedy.removeprefix("did you mean ").rstrip("?") for problem in found} == misspelt


def test_a_misspelt_experiment_is_told(config):
    parameters = config / "parameters.yaml"
    parameters.write_text(parameters.read_text().replace("experiment:", "expriment:"))
    (problem,) = composed(config).misspelt
    assert (problem.key, problem.remedy) == ("expriment", "did you mean 'experiment'?")
    assert problem.origin.endswith("parameters.yaml:2")


def test_the_catalog_is_overridden_by_name(config):
    settings = composed(config, "catalog.numbers.raw=elsewhere.npz")
    assert settings.catalog["numbers"]["raw"]["filepath"] == "elsewhere.npz"
    entry = settings.open_catalog(config.parent).entry("numbers.raw")
    assert entry.origin == "override 'catalog.numbers.raw=elsewhere.npz'"


def test_the_experiment_has_a_name(config):
    assert composed(config).experiment == "numbers_exp"
    assert composed(config, "experiment=other").experiment == "other"


def test_parameters_cannot_be_changed_and_missing_ones_name_their_neighbours(config):
    params = composed(config).params
    with raises_problem(key="params.epoch", reason="locked"):
        params.epoch = 4
    with raises_problem(remedy="did you mean 'epoch'"):
        params.epohc  # noqa: B018
    assert not hasattr(params, "epohc")
    assert params.get("epohc", 7) == 7
    assert params["epoch"] == 3


@pytest.mark.parametrize(
    ("override", "fields"),
    [
        ("Numbers_B.epohc=1", {"key": "Numbers_B.epohc", "received": 1, "remedy": "did you mean 'epoch'"}),
        ("Numbers_C.epoch=1", {"key": "Numbers_C", "reason": "unknown key", "remedy": "did you mean 'Numbers_"}),
        ("epoch=1", {"key": "epoch", "reason": "parameter of a task", "remedy": r"^write Numbers_B\.epoch=1$"}),
        ("epochs=5", {"key": "epochs", "reason": "parameter of a task", "remedy": r"^write Numbers_B\.epoch=5$"}),
        ("OwnRun.epoch=1", {"key": "OwnRun", "reason": "inherits nothing from it: Numbers_B <- Numbers_A"}),
        ("Numbers_B.epoch=0", {"key": "Numbers_B.epoch", "received": 0, "reason": "greater than or equal to 1"}),
        ("Numbers_B.epoch=many", {"key": "Numbers_B.epoch", "received": "many"}),
        ("Numbers_B.validation_split=1.5", {"key": "Numbers_B.validation_split", "received": 1.5}),
        ("catalog.numbers.rwa=x.npz", {"key": "catalog.numbers.rwa", "remedy": "did you mean 'numbers.raw'"}),
        (
            "optimizer.optimizer.type=admam",
            {"key": "optimizer.optimizer.type", "received": "admam", "remedy": "did you mean 'adam'"},
        ),
        ("optimizer.lerning_rate.type=constant", {"key": "optimizer.lerning_rate", "remedy": "'learning_rate'"}),
        ("optimizer=admam", {"key": "optimizer.optimizer.type", "received": "admam", "remedy": "did you mean 'adam'"}),
        ("epcoh=5", {"key": "epcoh", "reason": "parameter of a task", "remedy": r"^write Numbers_B\.epoch=5$"}),
        ("lr=0.3", {"key": "lr", "reason": "for the optimizer", "remedy": r"^write optimizer\.learning_rate=0\.3$"}),
        (
            "Numbers_B.learning_rat=0.3",
            {"key": "Numbers_B.learning_rat", "received": 0.3, "remedy": r"^write optimizer\.learning_rate=0\.3$"},
        ),
        (
            "Numbers_B.momentum=0.9",
            {"key": "Numbers_B.momentum", "remedy": r"^write optimizer\.optimizer\.TYPE\.momentum=0\.9$"},
        ),
    ],
)
def test_a_wrong_override_is_one_line(config, override, fields):
    with raises_problem(origin=f"override {override!r}", **fields) as caught:
        composed(config, override)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "line", "fields"),
    [
        (
            "parameters.yaml",
            "Numbers_B: {epochs: 3}\n",
            1,
            {"key": "Numbers_B.epochs", "remedy": "did you mean 'epoch'"},
        ),
        ("parameters.yaml", "epoch: 3\n", 1, {"key": "epoch", "reason": "belongs in the block of a task"}),
        ("parameters.yaml", "numbers_b: {epoch: 3}\n", 1, {"key": "numbers_b", "remedy": "did you mean 'Numbers_B'"}),
        ("parameters.yaml", "Numbers_B: 3\n", 1, {"key": "Numbers_B", "received": 3}),
        ("parameters.yaml", "gin: x\n", 1, {"key": "gin", "reason": "is not a key of a flow"}),
        (
            "parameters.yaml",
            "Numbers_B: {other: '${Nobody.epoch}'}\n",
            1,
            {"key": "Numbers_B.other", "reason": "cannot resolve"},
        ),
        (
            "optimizer.yaml",
            "optimizer: {type: sgd, sgd: {momentun: 1}}\n",
            1,
            {"key": "optimizer.optimizer.sgd.momentun", "remedy": "'momentum'"},
        ),
        (
            "optimizer.yaml",
            "\nname: sdg\n",
            2,
            {"key": "optimizer.optimizer.type", "received": "sdg", "remedy": "'sgd'"},
        ),
        (
            "optimizer.yaml",
            "name: sgd\nmomentun: 1\n",
            2,
            {"key": "optimizer.optimizer.sgd.momentun", "remedy": "'momentum'"},
        ),
    ],
)
def test_values_that_would_be_ignored_are_refused_with_their_place(config, file, text, line, fields):
    path = local(config, file, text)
    with raises_problem(origin=f"{path}:{line}", **fields):
        composed(config)


def test_a_file_that_would_not_be_read_is_refused(config):
    path = local(config, "paramters.yaml", "Numbers_B: {epoch: 3}\n")
    with raises_problem(key=str(path), reason="would not be read"):
        composed(config)
