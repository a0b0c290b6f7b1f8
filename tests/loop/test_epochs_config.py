"""Training and intervals in epochs, where the configuration is read and where a run uses it."""

import csv
import json

import numpy as np
import pytest

import everstep as es
from everstep.config import apply, dialect
from everstep.errors import TrainingError, UsageError
from everstep.loop.config import in_steps
from everstep.testing.problems import raises_problem

from .samples import TinyTask, run, tiny_params, weights

pytestmark = pytest.mark.slow

INTERVALS = ("steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval")

# -- the configuration -------------------------------------------------------------------------------------------------


def test_epochs_and_train_steps_are_alternatives():
    trainer = es.TrainerConfig()
    assert (trainer.train_steps, trainer.epochs) == (1000, None)
    trainer.epochs = 3
    assert (trainer.train_steps, trainer.epochs) == (None, 3.0)
    config = apply(es.ExperimentConfig(trainer=trainer), overrides=["trainer.train_steps=60"])
    assert (config.trainer.train_steps, config.trainer.epochs) == (60, None)
    assert apply(config, overrides=["trainer.epochs=0.5"]).trainer.train_steps is None


@pytest.mark.parametrize(
    ("both", "key", "received"),
    [
        (lambda: es.TrainerConfig(train_steps=60, epochs=3), "epochs", 3.0),
        (lambda: es.TrainerConfig({"train_steps": 60, "epochs": 3}), "epochs", 3),
        (
            lambda: es.ExperimentConfig().override({"trainer": {"train_steps": 60, "epochs": 3}}),
            "trainer.epochs",
            3,
        ),
    ],
)
def test_both_at_once_are_refused(both, key, received):
    with raises_problem(key=key, received=received, reason="but train_steps=60 is given", remedy="give one of them"):
        both()


def test_stored_text_reads_back_equal():
    trainer = es.TrainerConfig(epochs=2.5, validation_interval="0.5 epochs", summary_interval="1 epoch")
    tree = dialect.load(trainer.to_yaml())
    assert (tree["train_steps"], tree["epochs"], tree["validation_interval"]) == (None, 2.5, "0.5 epochs")
    assert es.TrainerConfig(tree) == trainer


@pytest.mark.parametrize("value", [1, 500, 500.0, np.int64(500), "1 epoch", "1 epochs", "2 epochs", "0.25 epochs"])
def test_intervals_in_steps_or_epochs(value):
    for name in INTERVALS:
        held = getattr(es.TrainerConfig({name: value}), name)
        assert held == value
        assert isinstance(held, int | str)


@pytest.mark.parametrize(
    "value",
    [*("1epoch", "1  epoch", "epoch", "-1 epoch", "1 Epoch", "1e3 epochs", "1 epoch ", "one epoch", "0 epochs")]
    + ["0.0 epochs", "1. epochs", ".5 epochs", "500", "", 1.5, True, float("nan"), [1], "\u0661 epoch"],
)
def test_intervals_of_another_form_are_refused(value):
    for name in INTERVALS:
        with raises_problem(key=f"trainer.{name}", reason="expected steps, as 500, or epochs") as error:
            es.ExperimentConfig().override({"trainer": {name: value}})
        assert error.value.received is value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train_steps": None}, "train_steps: received None, and epochs is None, too: set one of them"),
        ({"epochs": 0}, "epochs: received 0.0, must be more than 0"),
        ({"epochs": -1.5}, "epochs: received -1.5, must be more than 0"),
        ({"epochs": float("inf")}, "epochs: received inf"),
        ({"epochs": float("nan")}, "epochs: received nan"),
        ({"train_steps": 0}, "train_steps: received 0, must be at least 1"),
        ({"validation_interval": 0}, "validation_interval: received 0, must be at least 1"),
        ({"summary_interval": -100}, "summary_interval: received -100, must be at least 0"),
        ({"summary_interval": 150}, "summary_interval: received 150, must be a multiple of steps_per_loop (100)"),
    ],
)
def test_numbers_that_cannot_be(values, message):
    with pytest.raises(UsageError) as error:
        es.TrainerConfig(values).validate()
    assert message in str(error.value)


def test_epochs_are_valid_before_their_length_is_known():
    es.TrainerConfig(epochs=0.1, summary_interval="1 epoch", steps_per_loop=7).validate()


# -- in steps ----------------------------------------------------------------------------------------------------------


def test_in_steps():
    trainer = es.TrainerConfig(
        {"epochs": 3, "steps_per_loop": "0.5 epochs", "summary_interval": "2 epochs"}
        | {"validation_interval": "1 epoch", "checkpoint_interval": 4}
    )
    plain = in_steps(trainer, 10)
    assert (plain.train_steps, plain.epochs) == (30, None)
    assert [getattr(plain, name) for name in INTERVALS] == [5, 20, 4, 10]
    assert trainer.epochs == 3.0


@pytest.mark.parametrize(("epochs", "batches", "steps"), [(0.26, 10, 3), (0.01, 10, 1), (1 / 3, 9, 3), (1.5, 3, 4)])
def test_in_steps_rounds_and_is_never_nothing(epochs, batches, steps):
    assert in_steps(es.TrainerConfig(epochs=epochs), batches).train_steps == steps


def test_in_steps_leaves_steps_alone():
    trainer = es.TrainerConfig(train_steps=7, checkpoint_interval=0)
    trainer.lock()
    assert in_steps(trainer, None) == in_steps(trainer, 3) == trainer


def test_in_steps_keeps_the_class():
    class Mine(es.TrainerConfig):
        pass

    assert type(in_steps(Mine(epochs=2), 5)) is Mine


def test_unknown_length_names_every_key_that_needs_it():
    trainer = es.TrainerConfig(epochs=3, steps_per_loop="1 epoch")
    with pytest.raises(UsageError) as error:
        in_steps(trainer, None)
    first, second = error.value.problems
    assert (first.key, first.received) == ("trainer.epochs", 3.0)
    assert str(first).endswith("trainer.train_steps=1000")
    assert (second.key, second.received) == ("trainer.steps_per_loop", "1 epoch")
    assert str(second).endswith("trainer.steps_per_loop=1000")


def test_multiples_are_checked_in_steps():
    trainer = es.TrainerConfig(epochs=3, steps_per_loop=4, summary_interval="1 epoch")
    assert in_steps(trainer, 8).summary_interval == 8
    with pytest.raises(UsageError) as error:
        in_steps(trainer, 10)
    text = "trainer.summary_interval: received 10, must be a multiple of steps_per_loop (4); an epoch is 10 steps"
    assert str(error.value) == text


# -- in a run: an epoch of the tiny task has 5 steps -------------------------------------------------------------------

IN_EPOCHS = {"epochs": 2.4, "steps_per_loop": "0.8 epochs", "validation_interval": "1.6 epochs"}
IN_EPOCHS |= {"checkpoint_interval": "1.6 epochs"}  # as tiny_params() has it in steps


def epochs_params(**trainer):
    params = tiny_params()
    params.override({"trainer": {**IN_EPOCHS, **trainer}})
    return params


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    model_dir = tmp_path_factory.mktemp("epochs") / "run"
    return model_dir, *run("train_and_eval", model_dir, params=epochs_params())


@pytest.mark.backend
def test_run_in_epochs_is_the_run_in_steps(finished, tmp_path):
    model_dir, model, logs = finished
    twin, same = run("train_and_eval", tmp_path / "run")
    assert np.array_equal(weights(model), weights(twin))
    assert same["validation_loss"] == logs["validation_loss"]
    assert logged(model_dir) == logged(tmp_path / "run") == ["4", "8", "12"]
    assert checkpoint_names(model_dir) == checkpoint_names(tmp_path / "run") == {"8", "12"}


def logged(model_dir):
    with (model_dir / "history.csv").open() as file:
        return [row["step"] for row in csv.DictReader(file)]


def checkpoint_names(model_dir):
    return {path.name for path in (model_dir / "checkpoints").iterdir()}


@pytest.mark.backend
def test_configuration_is_stored_in_epochs(finished):
    tree = dialect.load((finished[0] / "config.yaml").read_text())
    assert tree["trainer"]["train_steps"] is None
    assert {name: tree["trainer"][name] for name in IN_EPOCHS} == IN_EPOCHS


@pytest.mark.backend
def test_plan_is_announced_in_steps(finished, capsys):
    run("train_and_eval", finished[0], params=epochs_params(epochs=2.6), verbose=True)
    printed = capsys.readouterr().err
    assert "plan: steps 12 to 13, log every 4, evaluate every 8, save every 8" in printed
    assert "resuming with trainer.epochs: 2.4 -> 2.6" in printed
    assert json.loads((finished[0] / "run.json").read_text())["step"] == 13


@pytest.mark.backend
def test_evaluation_needs_no_training_data(finished):
    class NoTraining(TinyTask):
        def build_inputs(self, params, input_context=None):
            if params.is_training:
                raise UsageError("there are no files here")
            return super().build_inputs(params, input_context)

    assert "mae" in run("eval", finished[0], task=NoTraining(), params=epochs_params())[1]
    with raises_problem(key="trainer.epochs", reason="task.train_data.*there are no files here"):
        run("continuous_eval", finished[0], task=NoTraining(), params=epochs_params())
    by_steps = epochs_params(train_steps=12, epochs=None)
    assert "mae" in run("continuous_eval", finished[0], task=NoTraining(), params=by_steps)[1]


@pytest.mark.backend
def test_continuous_eval_ends_with_the_last_epoch(finished, caplog):
    assert "mae" in run("continuous_eval", finished[0], params=epochs_params(continuous_eval_timeout=1))[1]
    assert "giving up" not in caplog.text


@pytest.mark.backend
def test_data_of_unknown_length_needs_steps(tmp_path):
    class Endless(TinyTask):
        def build_inputs(self, params, input_context=None):
            x, y = super().build_inputs(params, input_context)
            return (lambda: iter([(x[:8], y[:8])] * 3)) if params.is_training else (x, y)

    with raises_problem(key="trainer.epochs", received=2.4, reason="but the training data does"):
        run("train", tmp_path / "run", task=Endless(), params=epochs_params())
    assert not (tmp_path / "run").exists()
    run("train", tmp_path / "run", task=Endless(), train_steps=4)


@pytest.mark.backend
def test_data_that_ends_is_reported_in_steps(tmp_path):
    params = epochs_params()
    params.override({"task": {"train_data": {"repeat": False}}})
    with raises_problem(TrainingError, reason="ended after step 5"):
        run("train", tmp_path / "run", params=params)
