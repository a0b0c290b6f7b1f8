"""The best weights and early stopping of whole runs, on each backend; also of runs that were killed."""

import keras
import numpy as np
import pytest
from tests.loop.actions.samples import BEST, EVERY, Wavering, history, info, record
from tests.loop.samples import TinyTask, run, tiny_params

from everstep.actions import ConditionalAction, ExportFileManager, ExportSavedModel, NewBestMetric
from everstep.checkpoint.orbax import OrbaxCheckpointer
from everstep.experiment import create_trainer

pytestmark = pytest.mark.backend

STOPPING = {"early_stopping": {"metric": "score", "mode": "higher", "patience": 3}}
SETTINGS = {**BEST, **EVERY, **STOPPING, "train_steps": 40}


class Killed(BaseException):
    """As sudden as SIGKILL: nothing is saved."""


def killed_at(step):
    """Returns an action that kills the run at the evaluation of a step (every 2), before its checkpoint is written."""
    steps = iter(range(2, 100, 2))

    def die(logs):
        if next(steps) == step:
            raise Killed

    return die


def best_weights(directory):
    return OrbaxCheckpointer(directory / "best", repair=False).restore()[0]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run that was never killed."""
    directory = tmp_path_factory.mktemp("straight") / "run"
    logs = run("train_and_eval", directory, task=Wavering(), **SETTINGS)[1]
    return directory, logs


def test_ends_when_nothing_gets_better(straight):
    directory, logs = straight
    assert (record(directory)["step"], record(directory)["status"]) == (12, "finished")
    assert (logs["score"], logs["best_score"]) == (0.6, 0.7)
    assert history(directory, "best_score") == {2: "0.1", 4: "0.5", 6: "0.7", 8: "0.7", 10: "0.7", 12: "0.7"}
    assert info(directory)["score"] == 0.7
    assert set(info(directory)) == {"validation_loss", "mae", "score", "best_ckpt_global_step"}
    assert sorted(path.name for path in (directory / "best").iterdir()) == ["6", "info.json"]


@pytest.mark.parametrize(
    "step", [4, pytest.param(6, marks=pytest.mark.full), pytest.param(8, marks=pytest.mark.full), 10]
)
def test_killed_and_resumed_is_as_if_nothing_had_happened(straight, tmp_path, step):
    """At 4 nothing is saved yet; at 6 the best is written and not yet saved; at 10 the waiting has begun."""
    with pytest.raises(Killed):
        run("train_and_eval", tmp_path / "run", task=Wavering(), eval_actions=[killed_at(step)], **SETTINGS)
    run("train_and_eval", tmp_path / "run", task=Wavering(), **SETTINGS)
    assert record(tmp_path / "run")["digest"] == record(straight[0])["digest"]
    assert history(tmp_path / "run", "best_score") == history(straight[0], "best_score")
    assert info(tmp_path / "run") == info(straight[0])
    wanted, found = best_weights(straight[0]), best_weights(tmp_path / "run")
    assert all(np.array_equal(found[key], value) for key, value in wanted.items())
    assert set(found) == set(wanted)


class Tiny(TinyTask):
    def __init__(self, params):
        super().__init__()
        self._task_config = params


def test_the_best_weights_are_those_that_were_evaluated(straight, tmp_path):
    """A run that begins with them, and learns nothing, evaluates as they did."""
    params = tiny_params(train_steps=1, steps_per_loop=1)
    params.override({"task": {"init_checkpoint": str(straight[0] / "best")}})
    params.override({"trainer": {"optimizer_config": {"learning_rate": {"constant": {"learning_rate": 0.0}}}}})
    logs = run("train_and_eval", tmp_path / "run", task=Tiny(params.task), params=params)[1]
    assert logs["validation_loss"] == pytest.approx(info(straight[0])["validation_loss"], rel=1e-6)


def test_averaged_weights_are_exported(tmp_path):
    params = tiny_params(**EVERY | {"checkpoint_interval": 2, "max_to_keep": 9}, **BEST)
    params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.5}}}})
    model = run("train_and_eval", tmp_path / "run", task=Wavering(), params=params)[0]
    at_best, _ = OrbaxCheckpointer(tmp_path / "run" / "checkpoints", repair=False).restore(6)
    averages = {key: value for key, value in at_best.items() if key.startswith("optimizer/") and "average" in key}
    assert len(averages) == len(model.trainable_variables)
    best = best_weights(tmp_path / "run")
    kernels = [value for key, value in best.items() if key.endswith("kernel")]
    means = [value for key, value in averages.items() if "kernel" in key]
    assert all(any(np.array_equal(kernel, mean) for mean in means) for kernel in kernels)
    assert not any(np.array_equal(best[key], at_best[key]) for key in best if key.endswith("kernel"))
    written = tmp_path / "run" / "ema_checkpoints"
    assert [path.name for path in written.iterdir()] == ["12"]
    last, _ = OrbaxCheckpointer(written, repair=False).restore()
    assert set(last) == set(best)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, saving a model
def test_a_saved_model_has_the_averages_that_were_evaluated(tmp_path):
    tf = pytest.importorskip("tensorflow")
    params = tiny_params(train_steps=8)
    params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.5}}}})
    trainer = create_trainer(params, Wavering(), train=True, evaluate=True)
    x = trainer.validation_stream.peek()[0]
    export = ExportSavedModel(trainer.model, ExportFileManager(tmp_path / "model"))
    run("train_and_eval", tmp_path / "run", Wavering(), params, trainer=trainer, eval_actions=[export])
    served = tf.saved_model.load(str(tmp_path / "model-0")).signatures["serving_default"](tf.constant(x))
    raw, averaged = trainer.model(x), None
    with trainer.averaged():
        trainer.engine.push()
        averaged = trainer.model(x)
    found = next(iter(served.values())).numpy()
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(averaged), rtol=1e-5)
    assert not np.allclose(found, keras.ops.convert_to_numpy(raw), rtol=1e-5)
    digest = record(tmp_path / "run")["digest"]
    run("train_and_eval", tmp_path / "plain", Wavering(), params)
    assert record(tmp_path / "plain")["digest"] == digest  # what is trained on is put back bit by bit


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras, saving a model
def test_a_saved_model_each_time_it_gets_better(tmp_path):
    params = tiny_params(**EVERY)
    trainer = create_trainer(params, Wavering(), train=True, evaluate=True)
    files = ExportFileManager(tmp_path / "served" / "model", 2, lambda: trainer.global_step)
    action = ConditionalAction(NewBestMetric("score"), ExportSavedModel(trainer.model, files))
    run("train_and_eval", tmp_path / "run", Wavering(), params, trainer=trainer, eval_actions=[action])
    assert [name.rpartition("-")[2] for name in files.managed_files] == ["4", "6"]
