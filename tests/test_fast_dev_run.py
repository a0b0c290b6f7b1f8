"""One batch of everything: its stages, what each of them does, and which one fails."""

import dataclasses

import keras
import numpy as np
import pytest
from tests.task.multitask.samples import Pair, pair_config

import everstep as es
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.errors import TrainingError
from everstep.export.model_export import serving_format
from everstep.fast_dev_run import Stages, dev_run, one_batch
from everstep.testing.problems import raises_problem
from loop.samples import TinyTask, tiny_params

pytestmark = pytest.mark.slow


def stages_of(directory, make_task=lambda params: TinyTask(), params=None, mode="train_and_eval", export=True):
    """Runs every stage; returns their names and results."""
    lines = []
    try:
        dev_run(params or tiny_params(), make_task, mode, directory / "run", Stages(lines.append), export)
    finally:
        rows = [(line[:10].strip(), line[12:20].strip()) for line in lines]
    return rows


@pytest.mark.full
def test_every_stage(tmp_path):
    stages = stages_of(tmp_path, params=tiny_params(epochs=3, train_steps=None, summary_interval=8))
    assert stages == [(name, "ok") for name in ("build", "train", "evaluate", "save", "restore", "export")]
    assert (tmp_path / "run" / "export" / "model.keras").is_file()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["1"]


@pytest.mark.backend
def test_the_restored_state_is_the_saved_one(tmp_path):
    assert stages_of(tmp_path, export=False)[-2:] == [("restore", "ok"), ("export", "skipped")]


@pytest.mark.full
def test_skipped_stages(tmp_path):
    stages = dict(stages_of(tmp_path, mode="train", export=False))
    assert (stages["evaluate"], stages["export"]) == ("skipped", "skipped")
    assert not (tmp_path / "run" / "export").exists()


class Watched(TinyTask):
    """Records what it has read and evaluated."""

    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    def build_inputs(self, params, input_context=None):
        self._seen.append(("data", params.limit_batches))
        return super().build_inputs(params, input_context)

    def aggregate_logs(self, state=None, step_outputs=None):
        return (state or 0) + 1

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        self._seen.append(("evaluated", aggregated_logs))
        return {}


def test_one_batch_of_each(tmp_path):
    seen = []
    params = tiny_params(validation_steps=3, overfit_batches=2, sanity_validation_steps=2, checkpoint_seconds=9.0)
    params.trainer.tracking.mlflow = True
    stages_of(tmp_path, lambda params: Watched(seen), params, export=False)
    assert seen == [("data", 1), ("data", 1), ("evaluated", 1), ("data", 1)]
    assert not one_batch(params).trainer.tracking.mlflow
    assert not list(tmp_path.glob("mlflow*"))
    assert params.trainer.tracking.mlflow  # the user's own is unchanged


@pytest.mark.full
def test_several_tasks(tmp_path):
    config = pair_config()
    params = es.ExperimentConfig(task=config, trainer=tiny_params().trainer)
    assert [result for _, result in stages_of(tmp_path, lambda params: Pair(params.task), params, export=False)] == [
        *["ok"] * 5,
        "skipped",
    ]


@dataclasses.dataclass
class Failing:
    """An action, or a part of a task, that fails."""

    error: Exception

    def __call__(self, *args, **kwargs):
        raise self.error


@pytest.mark.parametrize(
    ("method", "stage"),
    [
        ("build_model", "build"),
        ("build_inputs", "build"),
        ("reduce_aggregated_logs", "evaluate"),
    ],
)
def test_the_failing_stage_is_named(tmp_path, method, stage):
    task = Watched([])
    setattr(task, method, Failing(TrainingError("no such luck")))
    lines = []
    with raises_problem(TrainingError, reason=f"^{stage} failed: no such luck"):
        dev_run(tiny_params(), lambda params: task, "train_and_eval", tmp_path / "run", Stages(lines.append))
    assert lines[-1].split()[:2] == [stage, "failed"]


def test_a_loss_that_is_not_finite_fails_training(tmp_path):
    class Infinite(TinyTask):
        def build_losses(self, labels, model_outputs, aux_losses=None, sample_weight=None):
            return keras.ops.mean(model_outputs) * float("inf")

    with raises_problem(TrainingError, reason="^train failed: the training loss is -?inf"):
        stages_of(tmp_path, lambda params: Infinite())


class Unsaved(keras.layers.Layer):
    """Cannot be serialized."""

    def call(self, inputs):
        return inputs

    def get_config(self):
        raise NotImplementedError("cannot be serialized")


@pytest.mark.full
def test_a_format_that_a_model_cannot_have_is_named(tmp_path, caplog):
    class Bare(TinyTask):
        def build_model(self):
            inputs = keras.Input((4,))
            return keras.Model(inputs, Unsaved()(keras.layers.Dense(1)(inputs)))

    lines = []
    dev_run(tiny_params(), lambda params: Bare(), "train", tmp_path / "run", Stages(lines.append))
    assert lines[-1].split()[-1] == serving_format()[0]
    assert "not exported as model.keras: cannot be serialized" in caplog.text


def test_a_model_that_cannot_be_exported_in_any_format(tmp_path, monkeypatch):
    none = Failing(TypeError("no format"))
    monkeypatch.setattr("everstep.export.model_export.export_keras", none)
    monkeypatch.setattr("everstep.export.model_export.serving_format", lambda: ("other", none))
    with raises_problem(TrainingError, reason="^export failed: the model cannot be exported in any format"):
        stages_of(tmp_path, mode="train")


def test_a_checkpoint_that_is_restored_with_other_bits(tmp_path, monkeypatch):
    real = OrbaxCheckpointer.restore

    def damaged(self, step=None):
        state, meta = real(self, step)
        key = next(key for key in state if key.startswith("model/"))
        return {**state, key: np.nextafter(state[key], np.float32(9))}, meta

    monkeypatch.setattr(OrbaxCheckpointer, "restore", damaged)
    with raises_problem(TrainingError, reason=r"^restore failed: 1 of \d+ variables have other bits .* model/"):
        stages_of(tmp_path)


def test_a_usage_error_stays_one(tmp_path):
    with raises_problem(reason=r"^build failed: task\.train_data"):
        stages_of(tmp_path, params=tiny_params().replace(task={"train_data": {"global_batch_size": 99}}))
