"""`mnist/distilled`: the loss, the frozen teacher, exact resume, and which teachers are refused."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import everstep as es
from everstep.errors import UsageError
from everstep.task.distillation import distillation_loss

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher") / "teacher.keras"
    keras.utils.set_random_seed(7)
    stack = [keras.Input((28, 28)), keras.layers.Flatten(), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)]
    keras.Sequential(stack).save(path)
    return path


def experiment(name, steps=6, **task):
    params = es.get_exp_config("mnist/distilled")
    small = {"num_samples": 64, "model": {"units": 4}, "train_data": {"global_batch_size": 8}}
    params.override({"task": {"teacher": str(name), **small, **task}})
    intervals = {"checkpoint_interval": 3, "steps_per_loop": 3, "validation_interval": 3, "validation_steps": 1}
    rate = {"optimizer_config": {"learning_rate": {"cosine": {"decay_steps": 6}}}}
    params.override({"trainer": {"train_steps": steps, **intervals, **rate}})
    return params


def run(params, directory):
    task = es.get_task(params.task)
    _, logs = es.run_experiment(task, params, directory, "train", export=False, verbose=False)
    return task, logs, json.loads((directory / "run.json").read_text())["digest"]


def test_the_loss_is_zero_for_equal_outputs_and_grows_with_the_difference():
    logits = np.float32([[1, 2, 3], [0, 0, 9]])
    assert float(distillation_loss(logits, logits, 4.0)) == pytest.approx(0, abs=1e-6)
    other = np.float32([[3, 2, 1], [0, 0, 9]])
    wanted, found = (np.exp(each / 2) / np.exp(each / 2).sum(-1, keepdims=True) for each in (logits, other))
    expected = (wanted * np.log(wanted / found)).sum(-1).mean() * 4
    assert float(distillation_loss(logits, other, 2.0)) == pytest.approx(expected, rel=1e-5)
    assert float(distillation_loss(logits, other, 2.0, np.float32([0, 1]))) == pytest.approx(0, abs=1e-6)


def test_only_the_student_learns_and_resumes_exactly(teacher, tmp_path):
    task, logs, straight = run(experiment(teacher), tmp_path / "straight")
    before = keras.saving.load_model(teacher).get_weights()
    after = [ops.convert_to_numpy(weight) for weight in task.teacher.weights]
    assert all(map(np.array_equal, before, after))
    assert np.isfinite(logs["distillation_loss"])
    run(experiment(teacher, steps=3), tmp_path / "run")
    assert run(experiment(teacher), tmp_path / "run")[2] == straight


def test_without_weight_it_is_the_student_alone(teacher, tmp_path):
    alone = es.get_exp_config("mnist/mlp")
    alone.override({"task": {"num_samples": 64, "model": {"units": 4, "dropout": 0.0}}})
    alone.override({"task": {"train_data": {"global_batch_size": 8}}})
    alone.override({"trainer": experiment(teacher).trainer.as_dict()})
    losses = [
        run(params, tmp_path / name)[1]["training_loss"]
        for name, params in {"alone": alone, "distilled": experiment(teacher, weight=0.0)}.items()
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("values", [{"teacher": ""}, {"temperature": 0.0}, {"weight": 1.5}], ids=str)
def test_wrong_values_are_refused(teacher, values):
    with pytest.raises(UsageError) as error:
        experiment(teacher, **values).validate()
    assert error.value.key == f"task.{next(iter(values))}"


def test_other_teachers_are_refused(tmp_path):
    def refused(name):
        with pytest.raises(UsageError) as error:
            run(experiment(name), tmp_path / "run")
        assert error.value.key == "task.teacher"
        assert not (tmp_path / "run").exists()
        return error.value

    assert refused(tmp_path / "nothing").reason == "does not exist"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(10)]).save(tmp_path / "other.keras")
    assert "maps (None, 4) to (None, 10)" in refused(tmp_path / "other.keras").reason
    (tmp_path / "text.keras").write_text("text")
    refused(tmp_path / "text.keras")
