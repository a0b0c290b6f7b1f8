"""Ready-made tasks: their losses, metrics and checks."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import everstep
from everstep.errors import UsageError
from everstep.task.classification import (
    IGNORED,
    ImageClassificationTask,
    LanguageModelTask,
    TokenClassificationTask,
    augmentation_layers,
    with_next_tokens,
)
from everstep.task.config import AugmentationConfig, TaskConfig
from everstep.task.regression import RegressionTask
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


class WithoutData:
    def build_inputs(self, params, input_context=None):
        return None


class Regression(WithoutData, RegressionTask):
    pass


class Tokens(WithoutData, TokenClassificationTask):
    pass


class Language(WithoutData, LanguageModelTask):
    pass


def measured(task, labels, outputs, **kwargs):
    """Returns the loss and every metric of one batch."""
    metrics = task.build_metrics()
    task.process_metrics(metrics, labels, outputs, **kwargs)
    return float(task.build_losses(labels, outputs, **kwargs)), [float(metric.result()) for metric in metrics]


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_regression(shape):
    labels, outputs = np.float32([1, 2, 3]).reshape(shape), np.float32([[1], [4], [0]])
    loss, (mae,) = measured(Regression(), ops.convert_to_tensor(labels), ops.convert_to_tensor(outputs))
    assert loss == pytest.approx((0 + 4 + 9) / 3)
    assert mae == pytest.approx((0 + 2 + 3) / 3)


def test_regression_with_sample_weights():
    labels, outputs = ops.convert_to_tensor([[1.0], [2.0]]), ops.convert_to_tensor([[3.0], [2.5]])
    weight = ops.convert_to_tensor([0.0, 2.0])
    assert measured(Regression(), labels, outputs, sample_weight=weight) == (pytest.approx(0.25), [pytest.approx(0.5)])


def logits(rows):
    """Returns logits with odds of e squared to one for the classes in `rows` over any other class."""
    return ops.convert_to_tensor(2 * np.eye(3, dtype="float32")[rows])


CROSS_ENTROPY = -np.log(np.exp([2.0, 0.0]) / (np.exp(2) + 2))  # of a right and of a wrong class


def test_ignored_tokens_do_not_count():
    labels = ops.convert_to_tensor(np.int32([[0, 1, IGNORED], [2, IGNORED, IGNORED]]))
    loss, (accuracy,) = measured(Tokens(), labels, logits([[0, 2, 1], [2, 0, 0]]))
    assert loss == pytest.approx((2 * CROSS_ENTROPY[0] + CROSS_ENTROPY[1]) / 3, rel=1e-6)
    assert accuracy == pytest.approx(2 / 3)


def test_tokens_with_sample_weights():
    labels = ops.convert_to_tensor(np.int32([[0, 1], [2, IGNORED]]))
    weight = ops.convert_to_tensor([0.0, 1.0])
    assert measured(Tokens(), labels, logits([[1, 1], [2, 0]]), sample_weight=weight)[1] == [1.0]


def test_only_ignored_tokens_give_no_loss():
    labels = ops.convert_to_tensor(np.int32([[IGNORED, IGNORED]]))
    assert measured(Tokens(), labels, logits([[0, 1]]))[0] == 0


def test_language_model_shifts_tokens_and_ignores_padding():
    tokens, labels = with_next_tokens(ops.convert_to_tensor(np.int32([[1, 2, 1, 0], [2, 2, 2, 2]])))
    assert np.asarray(labels).tolist() == [[2, 1, IGNORED, IGNORED], [2, 2, 2, IGNORED]]
    given = (tokens, "labels")
    assert with_next_tokens(given) is given


def test_tokens_may_come_in_a_tuple():
    tokens = ops.convert_to_tensor(np.int32([[1, 2, 1, 0]]))
    for alone in ((tokens,), [tokens]):
        same, labels = with_next_tokens(alone)
        assert same is tokens
        assert np.asarray(labels).tolist() == [[2, 1, IGNORED, IGNORED]]


class Guessing(LanguageModelTask):
    """Predicts random tokens, which come in a tuple, from the previous token."""

    def build_model(self):
        return keras.Sequential([keras.Input((8,), dtype="int32"), layers.Embedding(12, 16), layers.Dense(12)])

    def build_inputs(self, params, input_context=None):
        return (np.random.default_rng(0).integers(1, 12, (64, 8)).astype("int32"),)


def test_a_language_model_does_not_predict_its_own_input(tmp_path):
    params = everstep.ExperimentConfig()
    rate = {"learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}}}
    params.override({"trainer": {"train_steps": 40, "steps_per_loop": 20, "optimizer_config": rate}})
    _, logs = everstep.run_experiment(Guessing(), params, tmp_path, "train", export=False, verbose=False)
    assert logs["accuracy"] < 0.5


def test_perplexity_is_e_to_the_cross_entropy():
    labels = ops.convert_to_tensor(np.int32([[0, 1, IGNORED]]))
    loss, (_, perplexity) = measured(Language(), labels, logits([[0, 2, 1]]))
    assert perplexity == pytest.approx(np.exp(loss), rel=1e-5)


def test_classes_are_checked_on_the_host():
    task = Tokens()
    wrong = (np.zeros((2, 2)), np.int32([[0, IGNORED], [3, 1]]))
    task.check_batch(wrong)  # the number of classes is not known yet
    measured(task, ops.convert_to_tensor(np.int32([[0]])), logits([[0]]))
    task.check_batch((np.zeros((1, 2)), np.int32([[2, IGNORED]])))
    with raises_problem(reason=r"from 0 to 2, but 1 of 4 are not; the first is 3 at index \(1, 0\)"):
        task.check_batch(wrong)


def test_tokens_outside_the_vocabulary_are_refused():
    task = Language()
    measured(task, ops.convert_to_tensor(np.int32([[0]])), logits([[0]]))
    task.check_batch(np.int32([[0, 2]]))
    with raises_problem(reason="the tokens must be whole numbers from 0 to 2"):
        task.check_batch(np.int32([[0, 7]]))


class Images(WithoutData, ImageClassificationTask):
    def build_classifier(self):
        return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten()])  # returns its inputs


def augmented(**values):
    config = TaskConfig()
    object.__setattr__(config, "augmentation", AugmentationConfig(**values))
    return Images(config).build_model()


def test_images_are_augmented_only_in_training():
    model = augmented(flip="horizontal", rotation=0.1, translation=0.2, zoom=0.1)
    images = np.random.default_rng(0).random((4, 8, 8, 1), "float32")
    plain = np.asarray(model(images, training=False))
    np.testing.assert_array_equal(plain, images.reshape(4, 64))
    first, second = (np.asarray(model(images, training=True)) for _ in range(2))
    assert np.abs(first - plain).max() > 0.1
    assert np.abs(first - second).max() > 0.1


def test_without_augmentation_the_model_is_the_classifier():
    assert augmentation_layers(None) == augmentation_layers(AugmentationConfig()) == []
    assert [type(layer).__name__ for layer in augmented().layers] == ["Flatten"]


@pytest.mark.parametrize("name", ["rotation", "translation", "zoom"])
def test_augmentation_is_validated(name):
    with pytest.raises(UsageError) as caught:
        AugmentationConfig(**{name: 1.0}).validate()
    assert (caught.value.key, caught.value.received) == (name, 1.0)
    assert caught.value.reason == "must be from 0 to below 1"
