"""Parameters that the task never reads, names that Keras does not know, tasks whose `__init__` takes parameters."""

import logging
import sqlite3
import subprocess

import keras
import numpy as np
import pytest

from everstep.errors import UsageError
from everstep.flow import DataSet, FlowTask, create_task, run_flow
from everstep.projects.flow.settings import compose
from everstep.projects.flow.training import split_data
from everstep.projects.flow.unread import shown, unread_parameters
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def with_block(project, text):
    """Adds lines to the block of `Numbers_B`, the last one of the file."""
    with open(project / "config" / "parameters.yaml", "a", encoding="utf-8") as file:
        file.write(text)


def unread(task):
    """Returns the remedy of each parameter that the task has not read."""
    context = task._everstep_opened()
    found = unread_parameters(context.settings, context.params)
    return {problem.key.removeprefix("Numbers_B."): problem for problem in found}


# -- parameters that nothing reads ---------------------------------------------------------------------------------


@pytest.mark.daily("torch")
def test_parameters_that_the_task_never_reads_are_told_before_training_and_marked_on_mlflow(project, caplog):
    with_block(project, "  learning_rate: 0.7\n  epcoh: 9\n")
    with caplog.at_level(logging.WARNING, "everstep"):
        run_flow("Numbers_B", ["Numbers_B.epoch=1", "+Numbers_B.val_split=0.5"], project, verbose=False)
    told = [record.getMessage() for record in caplog.records if "never reads it" in record.getMessage()]
    assert [line.partition(":")[0] for line in told] == [
        *("Numbers_B.widths.second", "Numbers_B.learning_rate", "Numbers_B.epcoh", "Numbers_B.val_split")
    ]
    with sqlite3.connect(project / "mlflow.db") as database:
        tags = dict(database.execute("select key, value from tags").fetchall())
    assert tags["unread parameters"] == "widths.second, learning_rate, epcoh, val_split"


def test_each_unread_parameter_is_told_with_its_place_and_what_was_meant(project):
    with_block(project, "  lr: 0.1\n  optimizer: adam\n  num_epochs: 3\n  Epoch: 4\n  mine: {depth: 3, width: 4}\n")
    task = create_task("Numbers_B", ["Numbers_B.batch_size=8"], project)
    task.params.epoch, task.params["batch_size"], task.params.get("fails_in"), task.params.mine.depth
    found = unread(task)
    assert set(found) == {"killed_in", "widths.second", "lr", "optimizer", "num_epochs", "Epoch", "mine.width"}
    assert "optimizer.learning_rate=" in found["lr"].remedy
    assert "config/optimizer.yaml" in found["optimizer"].remedy
    assert "'epoch'" in found["num_epochs"].remedy
    assert "'epoch'" in found["Epoch"].remedy
    assert found["lr"].received == 0.1
    assert found["lr"].origin.endswith("parameters.yaml:15")


def test_a_copy_of_the_parameters_counts_as_they_do(project):
    task = create_task("Numbers_B", (), project)
    copied = task.params.replace(epoch=7)
    assert (copied.epoch, copied.widths.second, task.params.epoch) == (7, 3, 3)
    assert unread(task) == {}


def test_what_is_in_a_list_or_a_dict_is_read_with_it(project):
    with_block(project, "  metrics: {dense: accuracy}\n  layers: [{units: 3}, {units: 4}]\n")
    task = create_task("Numbers_B", (), project)
    assert {"metrics", "layers"} <= set(unread(task))
    assert (len(task.params.metrics), len(task.params.layers)) == (1, 2)
    assert unread(task).keys().isdisjoint({"metrics", "metrics.dense", "layers"})


@pytest.mark.parametrize("way", ["as_dict", "to_yaml", "settings", "settings.blocks", "items"])
def test_every_way_to_read_the_parameters_counts(project, way):
    task = create_task("Numbers_B", (), project)
    if way == "settings":
        assert task.settings.params.widths.second == 3
    elif way == "settings.blocks":
        assert task.settings.blocks.Numbers_B["widths"]["second"] == 3
    elif way == "items":
        for name in task.params:
            task.params[name]
        task.params.widths["second"]
    else:
        getattr(task.params, way)()
    assert "widths.second" not in unread(task)


def test_what_is_only_not_read_is_told_in_one_line(project):
    with_block(project, "  depth: 3\n  epcoh: 3\n  height: 4\n")
    context = create_task("Numbers_B", (), project)._everstep_opened()
    lines = shown(unread_parameters(context.settings, context.params))
    assert [line.partition(":")[0] for line in lines] == ["Numbers_B.epcoh", "Numbers_B"]
    assert "depth, height" in lines[-1]


def _set(params):
    params.epoch = 4


def _set_item(params):
    params["epoch"] = 4


def _delete(params):
    del params.epoch


@pytest.mark.parametrize("change", [_set, _set_item, _delete, lambda params: params.override({"epoch": 4})])
def test_parameters_are_read_only_and_say_where_they_are_set(project, change):
    task = create_task("Numbers_B", (), project)
    with pytest.raises(UsageError) as error:
        change(task.params)
    assert "config/parameters.yaml" in error.value.remedy
    assert "TASK.epoch=" in error.value.remedy
    assert "replace" not in str(error.value)
    copied = task.params.replace(batch_size=3)
    _set_item(copied)
    assert (copied.epoch, task.params.epoch) == (4, 3)


# -- names of losses and metrics -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "key", "received", "near"),
    [
        (
            "Numbers_B.loss=sparse_categorical_crosentropy",
            "Numbers_B.loss",
            "sparse_categorical_crosentropy",
            "entropy",
        ),
        ("Numbers_B.metrics=acuracy", "Numbers_B.metrics", "acuracy", "'accuracy'"),
        ("Numbers_B.metrics=[accuracy,Precison]", "Numbers_B.metrics", "Precison", "'Precision'"),
        ("+Numbers_B.metrics={dense: acuracy}", "Numbers_B.metrics", "acuracy", "'accuracy'"),
        ("Numbers_B.loss={class_name: Huberr}", "Numbers_B.loss", {"class_name": "Huberr"}, "'Huber'"),
        ("Numbers_B.loss=3", "Numbers_B.loss", 3, "known: "),
    ],
)
def test_a_loss_or_metric_that_keras_does_not_know_is_one_line_before_the_run(
    bare_project, override, key, received, near
):
    with pytest.raises(UsageError) as error:
        run_flow("Numbers_B", [override], bare_project, verbose=False)
    assert (error.value.key, error.value.received) == (key, received)
    assert near in error.value.remedy
    assert "\n" not in str(error.value)
    assert not (bare_project / "runs").exists()
    assert not (bare_project / "mlflow.db").exists()


@pytest.mark.daily("torch")
def test_a_model_without_any_loss_is_one_line_before_the_run(bare_project):
    if keras.backend.backend() == "jax":
        pytest.skip("there Keras trains such a model, with a loss of 0")
    with raises_problem(key="Numbers_B.loss", received=None, reason="the model has no loss"):
        run_flow("Numbers_B", ["Numbers_B.loss=null"], bare_project, verbose=False)
    assert not (bare_project / "runs").exists()


@pytest.mark.daily("torch")
def test_labels_that_the_loss_does_not_take_are_told_of_the_dataset(bare_project):
    with raises_problem(key="Numbers_B.dataset", reason="one number for each sample"):
        run_flow("Numbers_B", ["Numbers_B.loss=categorical_crossentropy"], bare_project, verbose=False)
    assert not (bare_project / "runs").exists()


@pytest.mark.daily("torch")
def test_one_metric_need_not_be_in_a_list(project):
    task = create_task("Numbers_B", ["Numbers_B.metrics=accuracy"], project)
    model = task.build_model()
    task.compile_model(model)
    assert model._compile_metrics._user_metrics == ["accuracy"]


# -- tasks as their seed writes them -------------------------------------------------------------------------------


class Seed_A(FlowTask):
    def __init__(self, params):
        super().__init__(params)
        self.params = params.Numbers_A
        self.seen = params.Numbers_A.epoch

    def fetch_data(self):
        self.x = np.arange(3.0)

    def preprocessing_train(self):
        return DataSet(self.x)

    def run(self):
        return {"sum": float(self.x.sum()), "prepared": len(self.dataset.train_data)}


class Numbers_A(Seed_A):
    pass


class Numbers_B(Numbers_A):
    def __init__(self, params):
        super().__init__(params)
        self.params = params.Numbers_B


class Silent(Seed_A):
    def __init__(self):
        pass


class Demanding(Seed_A):
    def __init__(self, params, size):
        pass


class Foreign(Seed_A):
    def __init__(self, params):
        self.params = params.shared


@pytest.mark.parametrize(("cls", "epoch"), [(Numbers_A, 2), (Numbers_B, 3)])
def test_a_constructor_may_take_the_blocks_of_the_parameters(project, cls, epoch):
    task = create_task(cls, (), project)
    assert (task.params.epoch, task.seen) == (epoch, 2)


def test_an_own_run_finds_the_data_fetched_and_prepared(project):
    assert run_flow(Silent, (), project, verbose=False).metrics == {"sum": 3.0, "prepared": 3}


@pytest.mark.parametrize(("cls", "key"), [(Demanding, "Demanding.__init__"), (Foreign, "Foreign.params")])
def test_a_constructor_that_cannot_be_called_is_one_line(project, cls, key):
    with pytest.raises(UsageError) as error:
        create_task(cls, (), project)
    assert error.value.key == key
    assert "\n" not in str(error.value)


class Counting(Silent):
    def fetch_data(self):
        self.calls = getattr(self, "calls", 0) + 1
        super().fetch_data()


class CountingAndCalling(Counting):
    def run(self):
        subprocess.run(["true"], check=True)
        return {"sum": float(self.x.sum())}


class CountingItself(Counting):
    def run(self):
        self.fetch_data()
        return {"sum": float(self.x.sum())}


class CountingTwice(CountingItself):
    def run(self):
        super().run()
        return super().run()


@pytest.mark.parametrize(
    ("cls", "calls"), [(Counting, 1), (CountingAndCalling, 1), (CountingItself, 1), (CountingTwice, 2)]
)
@pytest.mark.daily("torch")
def test_a_run_that_calls_a_step_itself_is_not_preceded_by_it(project, cls, calls):
    assert run_flow(cls, (), project, verbose=False).calls == calls


# -- data ----------------------------------------------------------------------------------------------------------


def test_labels_that_are_too_few_are_told_with_the_sizes_of_the_whole(project):
    params = compose(project / "config", ["Numbers_B", "FlowTask"], ["Numbers_B"], ["Numbers_B.validation_split=0.1"])
    dataset = DataSet(np.zeros((2000, 4)), np.zeros(1995))
    with pytest.raises(UsageError) as error:
        split_data(dataset, params.params, "Numbers_B")
    assert error.value.key == "Numbers_B.dataset"
    assert "2000" in error.value.reason
    assert "1995" in error.value.reason
