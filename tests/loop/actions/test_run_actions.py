"""Configured actions: which are created, which are refused, and what a resumed run may change."""

import keras
import numpy as np
import pytest
from tests.loop.actions.samples import BEST, EVERY, Wavering, info, record
from tests.loop.samples import SavedCounter, TinyTask, run, tiny_params

import everstep as es
from everstep.actions import EarlyStopping, EMACheckpointing, get_eval_actions, get_train_actions, register_action
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.errors import TrainingError
from everstep.loop.action_hook import Actions
from everstep.loop.controller import Controller
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_best_weights_may_be_turned_on_and_off_on_resume(tmp_path):
    run("train_and_eval", tmp_path / "run", task=Wavering(), **EVERY | {"train_steps": 4})
    run("train_and_eval", tmp_path / "run", task=Wavering(), **EVERY | BEST | {"train_steps": 8})
    assert info(tmp_path / "run")["best_ckpt_global_step"] == 6
    logs = run("train_and_eval", tmp_path / "run", task=Wavering(), **EVERY)[1]
    assert "best_score" not in logs
    assert info(tmp_path / "run")["best_ckpt_global_step"] == 6


def test_a_metric_that_no_evaluation_will_have_is_refused_at_the_start(tmp_path):
    with raises_problem(
        key="trainer.best_checkpoint_eval_metric", received="score", reason="is not a metric", remedy="mae"
    ):
        run("train_and_eval", tmp_path / "run", **BEST)
    assert not (tmp_path / "run").exists()


def test_one_that_only_an_evaluation_can_know_is_refused_there(tmp_path):
    settings = EVERY | BEST | {"best_checkpoint_eval_metric": "sore"}
    with raises_problem(
        key="trainer.best_checkpoint_eval_metric",
        received="sore",
        reason="is not a metric",
        remedy="mae, score, validation_loss",
    ):
        run("train_and_eval", tmp_path / "run", task=Wavering(), **settings)


@pytest.mark.parametrize(("task", "known"), [(None, "mae"), (Wavering(), "mae, score")])
def test_checkpoints_cannot_be_the_best_by_an_unknown_metric(tmp_path, task, known):
    """If a task computes its own metrics, they are known after the first evaluation."""
    settings = EVERY | {"keep_best": 1, "best_checkpoint_eval_metric": "sore"}
    with raises_problem(key="trainer.best_checkpoint_eval_metric", received="sore", remedy=f": {known}, val"):
        run("train_and_eval", tmp_path / "run", task=task, **settings)


def test_the_best_of_a_closing_evaluation_is_not_forgotten(tmp_path):
    """It comes after the last save of its attempt."""
    for steps in (6, 8):
        settings = EVERY | BEST | {"train_steps": steps}
        run("train_and_post_eval", tmp_path / "run", task=Wavering(), **settings)
        assert info(tmp_path / "run")["best_ckpt_global_step"] == 6


def test_a_single_evaluation_changes_nothing(tmp_path):
    settings = EVERY | BEST | {"train_steps": 4, "continuous_eval_timeout": 1}
    run("train", tmp_path / "run", task=Wavering(), **settings)
    run("eval", tmp_path / "run", task=Wavering(), **settings)
    assert not (tmp_path / "run" / "best").exists()
    run("continuous_eval", tmp_path / "run", task=Wavering(), **settings)
    assert info(tmp_path / "run")["best_ckpt_global_step"] == 4


def test_averages_need_an_optimizer_that_has_them(tmp_path):
    trainer = SavedCounter()
    trainer.optimizer = None
    with raises_problem(
        key="EMACheckpointing",
        received="NoneType",
        reason="averages no weights",
        remedy="set trainer.optimizer_config.ema",
    ):
        EMACheckpointing(tmp_path, trainer)


def test_averages_that_the_disk_does_not_take(tmp_path, monkeypatch, caplog):
    params = tiny_params(**EVERY | {"train_steps": 4}, save_failure="continue")
    params.override({"trainer": {"optimizer_config": {"ema": {}}}})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ema_checkpoints").write_text("in its place")
    run("train_and_eval", tmp_path / "run", params=params)
    assert record(tmp_path / "run")["status"] == "finished"
    assert "the averaged weights are not exported: step 4 could not be saved" in caplog.text


class Spoiled(TinyTask):
    """Its weights are NaN after the update of step 8, which no loss shows before the next; its score only grows."""

    def train_step(self, inputs, model, optimizer, metrics):
        logs = super().train_step(inputs, model, optimizer, metrics)
        gone = keras.ops.equal(keras.ops.cast(optimizer.iterations, "int32"), 8)
        for variable in model.trainable_variables:
            variable.assign(keras.ops.where(gone, float("nan"), keras.ops.convert_to_tensor(variable)))
        return logs

    def aggregate_logs(self, state, step_outputs):
        return True

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"score": float(global_step)}


@pytest.mark.parametrize("trials", [0, -1])
def test_diverged_weights_are_not_the_best(tmp_path, trials):
    """Neither where that ends the run, nor where it trains on."""
    acted = []
    params = tiny_params(**EVERY | BEST | {"train_steps": 8, "recovery_max_trials": trials})
    if trials == 0:
        params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.5}}}})
    actions = {
        "train_actions": [lambda logs: acted.append("train")],
        "eval_actions": [lambda logs: acted.append("eval")],
    }
    with raises_problem(TrainingError, reason="is not finite after step 8"):
        run("train_and_eval", tmp_path / "run", task=Spoiled(), params=params, **actions)
    assert acted == ["train", "eval"] * (3 if trials == 0 else 4)
    assert info(tmp_path / "run")["best_ckpt_global_step"] == 6
    for folder, steps in {"checkpoints": [4], "best": [6], "ema_checkpoints": [6] if trials == 0 else []}.items():
        kept = OrbaxCheckpointer(tmp_path / "run" / folder, repair=False)
        assert kept.steps() == steps
        assert all(np.isfinite(array).all() for step in steps for array in kept.restore(step)[0].values())


# -- early stopping ----------------------------------------------------------------------------------------------------


class Evaluated(SavedCounter):
    """Evaluates to a given list of values, the last one for ever after."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def evaluate(self, num_steps, **calls):
        return {"score": self.values[min(self.global_step, len(self.values)) - 1]}


def ended(values, **settings):
    """Returns the step at which a run that evaluates each step ends."""
    trainer, stopping = Evaluated(values), EarlyStopping("score", **settings)
    hooks = [Actions(evaluation=[stopping])]
    controller = Controller(trainer=trainer, evaluator=trainer, steps_per_loop=1, hooks=hooks)
    controller.train_and_evaluate(50, eval_interval=1)
    return trainer.global_step


@pytest.mark.parametrize(
    ("values", "settings", "step"),
    [
        ([1, 2, 3, 3, 3, 3], {"mode": "higher", "patience": 2}, 5),
        ([3, 2, 1, 1, 0, 0, 0], {"mode": "lower", "patience": 2}, 7),
        ([1, 1.2, 1.6, 2.0, 2.0, 3.0], {"mode": "higher", "patience": 2, "min_delta": 0.5}, 5),
        ([float("nan")] * 9, {"mode": "higher", "patience": 4}, 4),
        (range(60), {"mode": "higher", "patience": 1}, 50),
    ],
)
def test_when_it_ends(values, settings, step):
    assert ended(values, **settings) == step


def test_early_stopping_as_an_argument(tmp_path):
    settings = EVERY | {"checkpoint_interval": 2}
    stopping = EarlyStopping("score", "higher", patience=1, min_delta=0.3)
    run("train_and_eval", tmp_path / "run", task=Wavering(), eval_actions=[stopping], **settings)
    assert record(tmp_path / "run")["step"] == 6  # 0.7 is not better by more than 0.3 than 0.5


def test_early_stopping_may_change_on_resume(tmp_path, caplog, capsys):
    settings = EVERY | {"checkpoint_interval": 2}
    config = {"metric": "score", "mode": "higher", "patience": 2}
    run("train_and_eval", tmp_path / "run", task=Wavering(), **settings | {"train_steps": 4})
    run("train_and_eval", tmp_path / "run", task=Wavering(), early_stopping=config, **settings)
    assert record(tmp_path / "run")["step"] == 10
    assert "stops at step 10: score has not improved in 2 evaluations (best: 0.7)" in caplog.text
    run("train_and_eval", tmp_path / "run", task=Wavering(), early_stopping=config, verbose=True, **settings)
    assert (
        "nothing left to train: the run was stopped early at step 10: score has not improved" in capsys.readouterr().err
    )
    run("train_and_eval", tmp_path / "run", task=Wavering(), **settings | {"train_steps": 14})
    assert record(tmp_path / "run")["step"] == 14


@pytest.mark.parametrize(
    ("mode", "config", "fields"),
    [
        ("train_and_eval", {"metric": "validation_loss"}, {"key": "trainer.early_stopping.mode", "received": None}),
        ("train_and_eval", {"patience": 0}, {"key": "trainer.early_stopping.patience", "received": 0}),
        ("train_and_eval", {"min_delta": -1.0}, {"key": "trainer.early_stopping.min_delta", "received": -1.0}),
        (
            "train_and_eval",
            {"metric": "acc", "mode": "higher"},
            {"key": "trainer.early_stopping.metric", "received": "acc", "reason": "is not a metric"},
        ),
        (
            "train",
            {"metric": "mae", "mode": "lower"},
            {
                "key": "trainer.early_stopping.metric",
                "received": "mae",
                "reason": "mode 'train' does not evaluate during training",
                "remedy": "use train_and_eval",
            },
        ),
    ],
)
def test_early_stopping_that_cannot_be(tmp_path, mode, config, fields):
    with raises_problem(**fields):
        run(mode, tmp_path / "run", early_stopping=config)
    assert not (tmp_path / "run").exists()


def test_early_stopping_names_invalid_arguments():
    for settings, fields in (
        ({"mode": "max"}, {"key": "EarlyStopping.mode", "received": "max"}),
        ({"mode": "lower", "patience": 0}, {"key": "EarlyStopping.patience", "received": 0}),
        ({"mode": "lower", "patience": 1}, {"key": "EarlyStopping", "remedy": r"set_controller\(controller\)"}),
    ):
        with raises_problem(**fields):
            EarlyStopping("score", **settings)({"score": float("nan")})
    with raises_problem(key="EarlyStopping.metric", received="score", remedy=": mae"):
        EarlyStopping("score", "higher")({"mae": 1.0})


# -- actions by name ---------------------------------------------------------------------------------------------------

SEEN = []


@register_action("tests/note_loss")
def note_loss(logs):
    SEEN.append(logs["training_loss"])


@register_action("tests/count")
class Count:
    """Counts evaluations, over all attempts."""

    def __init__(self, trainer, model_dir):
        self.trainer, self.path = trainer, f"{model_dir}/count.txt"
        self.count = 0

    def __call__(self, logs):
        self.count += 1
        with open(self.path, "w") as file:
            file.write(f"{self.count} at {self.trainer.global_step}")


TALLIES = []


@register_action("tests/tally")
class Tally:
    """Counts its calls, with an array."""

    def __init__(self):
        self.calls = np.zeros(1, "int64")

    def __call__(self, logs):
        self.calls = self.calls + 1
        TALLIES.append(int(self.calls[0]))


def test_actions_by_name(tmp_path):
    SEEN.clear()
    params = tiny_params(**EVERY, train_actions=["tests/note_loss"], eval_actions=["tests/count"])
    run("train_and_eval", tmp_path / "run", params=params)
    assert len(SEEN) == 6
    assert (tmp_path / "run" / "count.txt").read_text() == "6 at 12"
    params.override({"trainer": {"train_steps": 16}})
    run("train_and_eval", tmp_path / "run", params=params)
    assert (tmp_path / "run" / "count.txt").read_text() == "8 at 16"


MY_ACTIONS = """
class Count:
    def __init__(self, model_dir, more):
        self.path, self.count = f"{model_dir}/count.txt", more

    def __call__(self, logs):
        self.count += 1
        with open(self.path, "w") as file:
            file.write(str(self.count))


def number():
    return 3
"""


def test_actions_by_target(tmp_path, monkeypatch):
    """A class of the project that one works in; of anything else, a configuration makes nothing."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "my_actions.py").write_text(MY_ACTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    trainer = SavedCounter()
    trainer.optimizer = None
    params = tiny_params(eval_actions=[{"_target_": "my_actions.Count", "more": 5}])
    (action,) = get_eval_actions(params, trainer, tmp_path)
    action({})
    assert (tmp_path / "count.txt").read_text() == "6"
    for target, reason in {
        "os.system": "'os.system' is refused",
        "my_actions.number": "creates a int, which cannot be called with logs",
        "my_actions.Nothing": "'my_actions.Nothing' does not exist",
        "my_actions.Count": "Count cannot be built: .*more",
    }.items():
        with raises_problem(key="trainer.train_actions[0]", reason=reason):
            get_train_actions(tiny_params(train_actions=[{"_target_": target}]), trainer, tmp_path)


def test_names_that_are_not_registered(tmp_path):
    params = tiny_params(train_actions=["tests/note"])
    with raises_problem(key="trainer.train_actions[0]", received="tests/note", remedy="did you mean"):
        run("train", tmp_path / "run", params=params)
    assert not (tmp_path / "run").exists()
    with raises_problem(key="eval_actions[0]", received={"a": 1}, reason="expected a registered name"):
        tiny_params(eval_actions=[{"a": 1}]).trainer.validate()
    with raises_problem(key="action 'tests/count'", reason="is registered already, by .*Count"):
        register_action("tests/count")(note_loss)
    with raises_problem(key="register_action", received="a b", reason="is not a valid name"):
        register_action("a b")


@pytest.mark.full
def test_a_list_of_actions_may_change_if_allowed(tmp_path):
    """Actions that are still listed are restored, also at another position; new ones start from scratch."""
    allow = {"allow_change": ["trainer.train_actions", "trainer.eval_actions"]}
    counted = tmp_path / "run" / "count.txt"

    def go_on(steps, **lists):
        run("train_and_eval", tmp_path / "run", params=tiny_params(**EVERY | {"train_steps": steps}, **lists), **allow)

    go_on(4, train_actions=["tests/tally"])
    go_on(8, eval_actions=["tests/count"])
    assert counted.read_text() == "2 at 8"
    go_on(12, train_actions=["tests/count"], eval_actions=["tests/tally", "tests/count"])
    assert counted.read_text() == "4 at 12"  # the one that is called last
    assert TALLIES == [1, 2, 1, 2]


def test_a_list_of_actions_is_a_change_of_what_is_computed(tmp_path):
    """They may change the weights."""
    run("train", tmp_path / "run", params=tiny_params(train_steps=4))
    params = tiny_params(train_steps=8, train_actions=["tests/note_loss"])
    with raises_problem(key="trainer.train_actions", reason=r"\[\] -> \[tests/note_loss\]"):
        run("train", tmp_path / "run", params=params)
    run("train", tmp_path / "run", params=params, allow_change=["trainer.train_actions"])
    assert isinstance(params, es.ExperimentConfig)
