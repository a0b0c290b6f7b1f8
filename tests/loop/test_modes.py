"""`run_experiment`: the modes, what resumes, and what belongs to a step."""

import csv
import json
import os
import signal

import keras
import numpy as np
import pytest

import everstep as es
from everstep.errors import TrainingError
from everstep.experiment import create_trainer
from everstep.run.exit_codes import exit_code
from everstep.run.signals import Interrupted
from everstep.testing.problems import raises_problem
from everstep.types import CLOCKS

from .samples import TinyTask, run, tiny_params, weights

pytestmark = pytest.mark.backend


def record(model_dir):
    return json.loads((model_dir / "run.json").read_text())


def history(model_dir):
    with (model_dir / "history.csv").open() as file:
        return [{name: cell for name, cell in row.items() if name not in CLOCKS} for row in csv.DictReader(file)]


def checkpoints(model_dir):
    return sorted(int(path.name) for path in (model_dir / "checkpoints").iterdir() if path.name.isdigit())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A train_and_eval run that was never interrupted: its directory, model and logs."""
    model_dir = tmp_path_factory.mktemp("finished") / "run"
    return model_dir, *run("train_and_eval", model_dir)


def test_train_and_eval(finished):
    model_dir, _, logs = finished
    assert set(logs) == {"validation_loss", "mae", "eval_seconds"}
    rows = history(model_dir)
    assert [row["step"] for row in rows] == ["4", "8", "12"]
    assert [bool(row["validation_loss"]) for row in rows] == [False, True, True]
    assert checkpoints(model_dir) == [8, 12]
    assert record(model_dir)["status"] == "finished"


def test_finished_run_again(finished):
    model_dir, model, logs = finished
    before = record(model_dir)
    again, same = run("train_and_eval", model_dir)
    assert same == logs
    assert np.array_equal(weights(again), weights(model))
    after = record(model_dir)
    assert (after["digest"], after["weights_digest"]) == (before["digest"], before["weights_digest"])
    assert after["metrics"] == before["metrics"]
    assert [attempt["from_step"] for attempt in after["attempts"]] == [0, 12]


def test_eval(finished):
    model_dir, _, logs = finished
    before = (model_dir / "run.json").read_bytes()
    alone = run("eval", model_dir)[1]
    assert alone["validation_loss"] == logs["validation_loss"]
    assert (model_dir / "run.json").read_bytes() == before


def test_continuous_eval_of_a_finished_run(finished):
    model_dir, _, logs = finished
    assert run("continuous_eval", model_dir)[1]["validation_loss"] == logs["validation_loss"]


def test_continuous_eval_gives_up_on_a_dead_trainer(finished):
    model_dir, _, logs = finished
    given_up = run("continuous_eval", model_dir, train_steps=100, continuous_eval_timeout=1)[1]
    assert given_up["validation_loss"] == logs["validation_loss"]


def test_interrupted_run_ends_in_the_same_bits(finished, tmp_path):
    model_dir, model, logs = finished
    interrupted = tmp_path / "run"
    trainer = create_trainer(tiny_params(), TinyTask(), train=True, evaluate=True)

    def interrupt(logs):
        if trainer.global_step == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("train_and_eval", interrupted, trainer=trainer, train_actions=[interrupt])
    assert record(interrupted)["status"] == "interrupted"
    assert checkpoints(interrupted) == [8]
    resumed, same = run("train_and_eval", interrupted)
    assert np.array_equal(weights(resumed), weights(model))
    assert same["validation_loss"] == logs["validation_loss"]
    assert record(interrupted)["digest"] == record(model_dir)["digest"]
    assert history(interrupted) == history(model_dir)
    assert [attempt["from_step"] for attempt in record(interrupted)["attempts"]] == [0, 8]


def test_run_made_longer_ends_in_the_same_bits(finished, tmp_path):
    """Also where the first part ended inside a window: it stays open."""
    model_dir, model, _ = finished
    run("train", tmp_path / "run", train_steps=6)
    resumed, logs = run("train", tmp_path / "run")
    assert np.array_equal(weights(resumed), weights(model))
    assert record(tmp_path / "run")["digest"] == record(model_dir)["digest"]
    assert logs["training_loss"] == float(history(model_dir)[-1]["training_loss"])
    assert float(history(tmp_path / "run")[-2]["training_loss"]) == float(history(model_dir)[1]["training_loss"])


def test_train_saves_at_the_end_and_evaluates_nothing(tmp_path):
    _, logs = run("train", tmp_path / "run", checkpoint_interval=0, save_summary=False)
    assert "training_loss" in logs
    assert "validation_loss" not in logs
    assert checkpoints(tmp_path / "run") == [12]
    assert not list(tmp_path.rglob("*tfevents*"))
    assert not (tmp_path / "run" / "history.csv").exists()


@pytest.mark.parametrize("how", [{"mode": "train_and_post_eval"}, {"mode": "train", "run_post_eval": True}])
def test_post_eval(how, finished, tmp_path):
    how = dict(how)
    mode = how.pop("mode")
    first = run(mode, tmp_path / "run", **how)[1]
    assert first["validation_loss"] == finished[2]["validation_loss"]
    again = run(mode, tmp_path / "run", **how)[1]
    assert again["validation_loss"] == first["validation_loss"]


def test_eval_without_checkpoint_leaves_nothing(tmp_path):
    with raises_problem(reason="no checkpoint to evaluate in"):
        run("eval", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_continuous_eval_without_checkpoint(tmp_path):
    with raises_problem(TrainingError, reason="no checkpoint appeared within 1 seconds"):
        run("continuous_eval", tmp_path / "run", continuous_eval_timeout=1)
    assert not (tmp_path / "run").exists()


def test_data_that_ends_fails_the_run_and_keeps_it(tmp_path):
    params = tiny_params()
    params.override({"task": {"train_data": {"repeat": False}}})
    with raises_problem(TrainingError, reason="ended after step 5 of 12"):
        run("train", tmp_path / "run", params=params)
    found = record(tmp_path / "run")
    assert (found["status"], found["step"]) == ("failed", 5)
    assert found["attempts"][0]["reason"].startswith("TrainingError: the training data ended after step 5")


class Once(es.Stream):
    """Batches of eight samples, made for one epoch."""

    def __init__(self, x, y):
        self._x, self._y = x, y
        super().__init__(repeat=False, batches_per_epoch=len(x) // 8)

    def open(self, epoch, batch):
        for at in range(8 * batch, len(self._x) - 7, 8):
            yield self._x[at : at + 8], self._y[at : at + 8]


class OnceTask(TinyTask):
    def build_inputs(self, params, input_context=None):
        return Once(*super().build_inputs(params, input_context))


@pytest.mark.parametrize("length", [{"train_steps": 12}, {"train_steps": None, "epochs": 2.4}])
def test_a_stream_that_was_made_for_one_epoch_is_opened_again_for_each(tmp_path, length):
    params = tiny_params()
    params.override({"trainer": length})
    run("train_and_eval", tmp_path / "run", task=OnceTask(), params=params)
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["step"]) == ("finished", 12)


def test_an_error_names_what_repeats_the_data(tmp_path):
    params = tiny_params()
    params.override({"task": {"train_data": {"repeat": False}}})
    with pytest.raises(TrainingError) as refused:
        run("train", tmp_path / "run", task=OnceTask(), params=params)
    assert "task.train_data.repeat" in str(refused.value)
    params.override({"task": {"train_data": {"repeat": True}}})
    run("train", tmp_path / "again", task=OnceTask(), params=params)


class FailingEvaluation(TinyTask):
    """Code of its user that fails at a step: in `aggregate_logs`, `reduce_aggregated_logs` or an action."""

    def __init__(self, where="", at=12):
        super().__init__()
        self.where, self.at, self.trainer = where, at, None

    def fail_in(self, where):
        if where == self.where and self.trainer is not None and self.trainer.global_step == self.at:
            raise RuntimeError(f"in {where}")

    def aggregate_logs(self, state, step_outputs):
        self.fail_in("aggregate_logs")
        return [*(state or []), step_outputs["loss"]]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        self.fail_in("reduce_aggregated_logs")
        return {"batches": len(aggregated_logs)}

    def act(self, logs):
        self.fail_in("an action")

    def run(self, model_dir, **fields):
        self.trainer = create_trainer(tiny_params(**fields), self, train=True, evaluate=True)
        return run("train_and_eval", model_dir, self, trainer=self.trainer, eval_actions=[self.act], **fields)


@pytest.mark.parametrize(
    "where",
    [*(pytest.param(one, marks=pytest.mark.full) for one in ("aggregate_logs", "reduce_aggregated_logs")), "an action"],
)
def test_a_closing_evaluation_that_fails_loses_no_training(where, tmp_path):
    whole = FailingEvaluation().run(tmp_path / "whole", checkpoint_interval=0)[1]
    with pytest.raises(RuntimeError, match=f"in {where}"):
        FailingEvaluation(where).run(tmp_path / "run", checkpoint_interval=0)
    assert (checkpoints(tmp_path / "run"), record(tmp_path / "run")["status"]) == ([12], "failed")
    repaired = FailingEvaluation().run(tmp_path / "run", checkpoint_interval=0)[1]
    assert [attempt["from_step"] for attempt in record(tmp_path / "run")["attempts"]] == [0, 12]
    assert repaired["validation_loss"] == whole["validation_loss"]
    assert repaired["batches"] == 4
    assert record(tmp_path / "run")["digest"] == record(tmp_path / "whole")["digest"]
    assert history(tmp_path / "run") == history(tmp_path / "whole")


def test_a_failed_evaluation_loses_no_training(tmp_path):
    with pytest.raises(RuntimeError, match="in aggregate_logs"):
        FailingEvaluation("aggregate_logs", at=8).run(tmp_path / "run", checkpoint_interval=0)
    assert checkpoints(tmp_path / "run") == [8]
    whole = FailingEvaluation().run(tmp_path / "whole")
    again = FailingEvaluation().run(tmp_path / "run")
    assert np.array_equal(weights(again[0]), weights(whole[0]))
    assert history(tmp_path / "run") == history(tmp_path / "whole")


def test_actions_see_and_change_weights(tmp_path):
    """On every backend: also where the state is not in the Keras objects while steps run."""
    trainer = create_trainer(tiny_params(), TinyTask(), train=True, evaluate=True)
    kernel, rate = trainer.model.layers[0].kernel, trainer.optimizer.learning_rate
    seen = []

    def act(logs):
        seen.append(np.array(keras.ops.convert_to_numpy(kernel)))
        if trainer.global_step == 8:
            kernel.assign(np.zeros(kernel.shape))
            rate.assign(0.0)

    run("train", tmp_path / "run", trainer=trainer, train_actions=[act])
    assert not np.array_equal(seen[0], seen[1])
    assert not seen[2].any()  # with a learning rate of nothing, what was set stays
    assert not keras.ops.convert_to_numpy(kernel).any()


def test_stop_from_an_action(tmp_path):
    class GoodEnough:
        def set_controller(self, controller):
            self.controller = controller

        def __call__(self, logs):
            self.controller.stop("good enough")

    action = GoodEnough()
    logs = run("train_and_eval", tmp_path / "run", eval_actions=[action])[1]
    assert action.controller.step == 8
    assert checkpoints(tmp_path / "run") == [8]
    assert record(tmp_path / "run")["status"] == "finished"
    again = run("train_and_eval", tmp_path / "run", eval_actions=[GoodEnough()])[1]
    assert record(tmp_path / "run")["step"] == 8
    assert again["validation_loss"] == logs["validation_loss"]


def test_initial_weights_only_for_a_fresh_run(tmp_path):
    called = []

    def zeros(model):
        called.append(model)
        for variable in model.trainable_variables:
            variable.assign(np.zeros(variable.shape))

    run("train", tmp_path / "run", init_fn=zeros, train_steps=4)
    run("train", tmp_path / "run", init_fn=zeros, train_steps=8)
    assert len(called) == 1
    first = history(tmp_path / "run")[0]["training_loss"]
    _, targets = TinyTask().build_inputs(tiny_params().task.train_data)
    assert float(first) == pytest.approx(np.mean(targets**2), rel=0.5)  # what zeros predict


def test_summary_interval(tmp_path):
    run("train", tmp_path / "run", train_steps=12, steps_per_loop=2, summary_interval=6, checkpoint_interval=0)
    assert [row["step"] for row in history(tmp_path / "run")] == ["6", "12"]


def test_mixed_precision_while_it_runs(tmp_path):
    before = keras.config.dtype_policy()
    params = tiny_params(train_steps=2)
    params.override({"runtime": {"mixed_precision_dtype": "bfloat16"}})
    model, _ = run("train", tmp_path / "run", params=params)
    assert {layer.compute_dtype for layer in model.layers} == {"bfloat16"}
    assert {str(variable.dtype) for variable in model.trainable_variables} == {"float32"}
    assert keras.config.dtype_policy() == before


@pytest.mark.parametrize(
    ("mode", "model_dir", "params", "fields"),
    [
        ("trian", "run", {}, {"key": "mode", "received": "trian", "reason": "unknown mode", "remedy": "'train'"}),
        ("train_and_validate", "run", {}, {"key": "mode", "received": "train_and_validate", "reason": "unknown mode"}),
        ("train", None, {}, {"key": "model_dir", "received": None}),
        ("train", "", {}, {"key": "model_dir", "received": ""}),
        ("train", "run", {"train_steps": 0}, {"key": "trainer.train_steps", "received": 0, "reason": "at least 1"}),
        ("train", "run", {"validation_steps": 0}, {"key": "trainer.validation_steps", "received": 0}),
        (
            "train",
            "run",
            {"summary_interval": 3},
            {"key": "trainer.summary_interval", "received": 3, "reason": "multiple of steps_per_loop"},
        ),
    ],
)
def test_bad_requests_leave_nothing(mode, model_dir, params, fields, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises_problem(**fields):
        run(mode, model_dir, **params)
    assert not list(tmp_path.iterdir())


def test_several_replicas_are_refused(tmp_path):
    class Strategy:
        num_replicas_in_sync = 2

    with raises_problem(key="distribution_strategy"):
        es.run_experiment(TinyTask(), tiny_params(), tmp_path / "run", "train", distribution_strategy=Strategy())


def test_run_that_ran_no_step_leaves_nothing(tmp_path):
    class NoLoss(TinyTask):
        def build_losses(self, *args, **kwargs):
            raise ValueError("no such loss")

    with pytest.raises(ValueError, match="no such loss"):
        run("train", tmp_path / "run", task=NoLoss())
    assert not (tmp_path / "run").exists()


class TrainedElsewhere(TinyTask):
    """While it is built here, a trainer begins in its directory, and has saved nothing yet."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def build_model(self):
        (self.directory / "checkpoints" / "0").mkdir(parents=True)
        return super().build_model()


def test_evaluation_leaves_a_trainers_directory_alone(tmp_path):
    with raises_problem(TrainingError, reason="no checkpoint"):
        run("continuous_eval", tmp_path / "run", TrainedElsewhere(tmp_path / "run"), continuous_eval_timeout=1)
    assert (tmp_path / "run" / "checkpoints" / "0").is_dir()


class AskedToEnd(TinyTask):
    """A stop is requested while its model is built."""

    def build_model(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().build_model()


def test_stop_requested_before_the_first_step(tmp_path):
    """Nothing is computed; what is there is kept for the next attempt, the run's id above all."""
    with pytest.raises(Interrupted) as interrupted:
        run("train", tmp_path / "run", AskedToEnd())
    assert (interrupted.value.exit_code, interrupted.value.saved) == (143, 0)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["step"]) == ("interrupted", 0)
    run("train", tmp_path / "run")
    again = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (again["id"], again["step"], len(again["attempts"])) == (record["id"], 12, 2)


def test_a_stopped_program_prints_once_what_is_saved(tmp_path, capfd):
    """The error is marked as announced, so that a command line does not print it again."""

    def request_stop(logs):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted) as interrupted:
        run("train", tmp_path / "run", train_actions=[request_stop], verbose=True)
    message = f"SIGINT: the state is saved at step {interrupted.value.saved}; the same command resumes from there"
    assert exit_code(interrupted.value) == 130
    assert capfd.readouterr().err.count(message) == 1
    with pytest.raises(Interrupted) as interrupted:
        run("train", tmp_path / "quiet", train_actions=[request_stop], verbose=False)
    assert message not in capfd.readouterr().err
    assert exit_code(interrupted.value) == 130
    assert capfd.readouterr().err == f"everstep: {message}\n"


class Reducing(TinyTask):
    """What Model Garden's tasks do: `.numpy()` of each replica's part, and results of their own."""

    def validation_step(self, inputs, model, metrics=None):
        return {**super().validation_step(inputs, model, metrics), "labels": inputs[1]}

    def aggregate_logs(self, state=None, step_outputs=None):
        state = state or {"labels": []}
        state["labels"].append(np.concatenate([v.numpy() for v in step_outputs["labels"]], axis=0))
        return state

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        labels = np.concatenate(aggregated_logs["labels"], axis=0)
        return {"loss": np.float32(7.0), "labels": labels, "count": len(labels)}


def test_a_reduced_loss_is_logged_beside_the_validation_loss(tmp_path, caplog):
    """As in Model Garden's trainer; values that are no numbers are skipped, with one warning."""
    logs = run("train_and_eval", tmp_path / "run", Reducing())[1]
    plain = run("train_and_eval", tmp_path / "plain")[1]
    assert logs["validation_loss"] == plain["validation_loss"]
    assert (logs["loss"], logs["count"]) == (7.0, 13)
    assert "labels" not in logs
    assert record(tmp_path / "run")["metrics"]["validation"]["loss"] == 7.0
    warned = [line for line in caplog.messages if "reduce_aggregated_logs" in line]
    assert warned == [
        "reduce_aggregated_logs returned a ndarray of shape (13, 1) for 'labels', which is not a single number "
        "and is not logged"
    ]


@pytest.mark.parametrize(
    ("mode", "post_eval", "planned"),
    [
        ("train", False, "log every 4, save every 8"),
        ("train", True, "log every 4, evaluate at the end, save every 8"),
        ("train_and_post_eval", False, "log every 4, evaluate at the end, save every 8"),
        ("train_and_eval", False, "log every 4, evaluate every 8, save every 8"),
    ],
)
def test_the_announced_plan_contains_when_the_mode_evaluates(mode, post_eval, planned, tmp_path, capsys):
    run(mode, tmp_path / "run", run_post_eval=post_eval, verbose=True, train_steps=4)
    assert f"plan: steps 0 to 4, {planned}\n" in capsys.readouterr().err


class Unexportable(keras.Model):
    """Once it is trained, it cannot be called."""

    broken = False

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        if Unexportable.broken:
            raise ValueError("it cannot be called")
        return self.dense(x)


def test_nothing_could_be_exported(tmp_path, caplog, monkeypatch):
    class Task(TinyTask):
        def build_model(self):
            return Unexportable()

    def act(logs):
        monkeypatch.setattr(Unexportable, "broken", True)

    run("train_and_eval", tmp_path / "run", Task(), export=True, validation_interval=12, eval_actions=[act])
    assert not (tmp_path / "run" / "export").exists()
    assert caplog.messages[-1] == (
        "the model is trained and saved, but not exported: fix what is reported above, then: "
        f"everstep export {tmp_path / 'run'}"
    )
