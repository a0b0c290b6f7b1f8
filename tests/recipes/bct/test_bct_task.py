"""`BCTTask` in real runs: what learns, what stays fixed, and that an interrupted run ends in the same bits."""

import keras
import numpy as np
import pytest
from bct_models import NAMES, TinyTask, old_model, params, same_bits, samples, train, weights

from everstep.bct import BCTConfig, Influence, OldModel
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def old_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("old") / "old.keras"
    old_model(size=7).save(path)
    return path


@pytest.fixture(scope="module")
def finished(old_file, tmp_path_factory):
    """A run against a wider old model, which lacks two classes; one dataset is excluded."""
    bct = {"old_model": str(old_file), "variant": "synthesise_new", "exclude_datasets": [1]}
    made = params(dataset_ids=True, bct=bct)
    return made, *train(tmp_path_factory.mktemp("runs") / "whole", made)


@pytest.mark.full
def test_both_classifiers_are_reported(finished):
    _, _, _, logs = finished
    assert {"validation_loss", "influence_loss", "head_acc", "old_head_acc"} <= set(logs)
    assert all(np.isfinite(value) for value in logs.values())


def test_accuracies_are_those_of_their_definitions():
    """Of the new classifier over all samples; of the old one, which has cat and ant, over samples of these two."""
    rng = np.random.default_rng(5)
    old, embedding, logits = OldModel(old_model()), rng.normal(size=(40, 5)).astype("float32"), rng.normal(size=(40, 4))
    labels, ids = rng.integers(4, size=40).astype("int32"), rng.integers(3, size=40)
    task = TinyTask(params().task)
    task.influence = Influence(old, NAMES, "old_classes", exclude_datasets=[2])
    metrics = task.build_metrics()
    answers = {"embedding": embedding, "logits": logits.astype("float32")}
    task.process_metrics(metrics, {"label": labels, "dataset_id": ids}, answers)
    found = {metric.name: float(keras.ops.convert_to_numpy(metric.result())) for metric in metrics}
    kernel = keras.ops.convert_to_numpy(old.classifier.kernel)
    judged = (embedding @ (kernel / np.linalg.norm(kernel, axis=0))).argmax(axis=1)  # 0 is cat, 1 is ant
    counted = np.isin(labels, [0, 2]) & (ids != 2)
    right = judged == np.where(labels == 2, 0, 1)
    assert found == pytest.approx(
        {"head_acc": (logits.argmax(1) == labels).mean(), "old_head_acc": right[counted].mean()}
    )


@pytest.mark.full
def test_the_old_model_is_as_it_was(finished, old_file, tmp_path):
    _, synthesised, _, _ = finished
    task, model, _ = train(tmp_path / "run", params(steps=2, bct={"old_model": str(old_file), "variant": "distill"}))
    stored = OldModel.load(old_file)
    assert same_bits(weights(task.influence.old_embedding), weights(stored.embedding))
    assert same_bits(weights(task.influence.classifier), weights(stored.classifier))
    kept = weights(synthesised.influence.classifier)[0][:, :2]
    assert np.ascontiguousarray(kept).tobytes() == weights(stored.classifier)[0].tobytes()
    old = {id(variable) for variable in task.influence.variables}
    assert len(old) == len(stored.embedding.variables) + 1
    assert not old & {id(variable) for variable in model.variables}
    assert not task.influence.trainable_variables


def test_an_interrupted_run_ends_in_the_same_bits(finished, tmp_path, monkeypatch):
    made, whole, model, _ = finished

    class Broken(Exception):
        pass

    loops = []

    def breaks(logs):
        loops.append(logs)
        if len(loops) == 2:
            raise Broken

    with pytest.raises(Broken):
        train(tmp_path / "run", made, train_actions=[breaks])
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit()] == ["2"]
    monkeypatch.setattr(TinyTask, "synthesis_inputs", lambda self: pytest.fail("they are in the checkpoint"))
    task, resumed, _ = train(tmp_path / "run", made)
    assert same_bits(weights(resumed), weights(model))
    assert same_bits(weights(task.influence), weights(whole.influence))
    assert all(np.isfinite(value).all() for value in weights(task.influence))


@pytest.mark.full
def test_weight_zero_is_independent_training_to_the_bit(finished, old_file, tmp_path):
    _, alone, _ = train(tmp_path / "alone", params(dataset_ids=True))
    _, zero, _ = train(tmp_path / "zero", params(dataset_ids=True, bct={"old_model": str(old_file), "weight": 0.0}))
    assert same_bits(weights(alone), weights(zero))
    assert not same_bits(weights(alone), weights(finished[2]))


def test_new_models_begin_with_the_same_weights_for_any_old_one(old_file):
    made = [params(), params(bct={"old_model": str(old_file)}), params(bct={"old_model": str(old_file), "weight": 0.0})]
    begun = []
    for one in made:
        keras.utils.set_random_seed(5)
        begun.append(weights(TinyTask(one.task).build_model()) + [np.asarray(np.random.random())])
    assert same_bits(begun[0], begun[1])
    assert same_bits(begun[0], begun[2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bct": {"weight": -1.0}}, "bct.weight: received -1.0"),
        ({"bct": {"weight": float("nan")}}, "bct.weight: received nan"),
        ({"bct": {"temperature": 0.0}}, "bct.temperature: received 0.0"),
        ({"classes": ["a", "a"]}, "classes: 'a' is listed more than once"),
        ({"classes": []}, "classes: received []"),
        ({"classifier": {"scale": 0.0}}, "classifier.scale: received 0.0"),
    ],
)
def test_wrong_values_are_named(settings, message):
    config = BCTConfig(classes=["a", "b"])
    config.override(settings)
    with pytest.raises(UsageError) as caught:
        config.validate()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_an_old_model_lacks_is_refused_before_anything_is_written(old_file, tmp_path):
    wrong = [
        ({"bct": {"old_model": "nowhere"}}, "task.bct.old_model: no such file or directory: 'nowhere'"),
        ({"bct": {"old_model": str(old_file), "old_embedding_size": 512}}, "has 7 components, but 512 were expected"),
        ({"bct": {"old_model": str(old_file), "variant": "old_classes"}, "classes": list("wxyz")}, "matched by name"),
    ]
    for settings, message in wrong:
        with pytest.raises(UsageError) as caught:
            train(tmp_path / "run", params(**settings))
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_labels_out_of_range_are_refused():
    task = TinyTask(params().task)
    x, y = samples()
    task.check_batch((x, y))
    with raises_problem(reason="from 0 to 3"):
        task.check_batch((x, {"label": y + 1, "dataset_id": y}))


def test_a_head_that_is_not_normalised_is_warned_of(caplog):
    TinyTask(params(classifier={"normalize": False}).task).build_model()
    assert "seldom compatible" in caplog.text
