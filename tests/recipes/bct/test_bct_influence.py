"""The influence loss, number by number, against NumPy."""

import keras
import numpy as np
import pytest
from bct_models import NAMES, backbone, old_model, same_bits, samples, weights

from everstep.bct import Classifier, Influence, OldModel, embed, with_classifier
from everstep.errors import UsageError
from everstep.recipes.bct.embedding import embedding_part
from everstep.task import grad
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


def unit(v, axis=-1):
    return v / np.linalg.norm(v, axis=axis, keepdims=True)


def log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def old() -> OldModel:
    return OldModel(old_model())


VECTORS = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
LABELS = np.array([0, 1, 2, 3, 2, 0], "int32")


def value(tensor) -> float:
    return float(keras.ops.convert_to_numpy(tensor))


def expected(old: OldModel, vectors, labels) -> np.ndarray:
    """The loss of each sample under the old classifier, whose classes are cat and ant."""
    kernel = np.asarray(keras.ops.convert_to_numpy(old.classifier.kernel))
    logits = log_softmax(16 * unit(vectors[:, : len(kernel)]) @ unit(kernel, 0))
    return -np.array([logits[i, {0: 1, 2: 0}[label]] if label in (0, 2) else 0 for i, label in enumerate(labels)])


def test_only_classes_that_the_old_model_has_count(old):
    influence = Influence(old, NAMES, "old_classes")
    losses = expected(old, VECTORS, LABELS)
    assert value(influence.loss(VECTORS, LABELS)) == pytest.approx(losses.sum() / 4, rel=1e-5)
    assert value(influence.loss(VECTORS, LABELS[:, None])) == pytest.approx(losses.sum() / 4, rel=1e-5)
    assert value(influence.loss(VECTORS[1:2], LABELS[1:2])) == 0.0
    weighted = value(influence.loss(VECTORS, LABELS, sample_weight=np.arange(6.0)))
    assert weighted == pytest.approx((losses * np.arange(6)).sum() / 4, rel=1e-5)


def test_excluded_datasets_do_not_count(old):
    influence = Influence(old, NAMES, "old_classes", exclude_datasets=[7, 9])
    ids = np.array([7, 0, 0, 0, 9, 1])
    losses = expected(old, VECTORS, LABELS)
    assert value(influence.loss(VECTORS, {"label": LABELS, "dataset_id": ids})) == pytest.approx(
        losses[[2, 5]].mean(), rel=1e-5
    )
    assert value(influence.loss(VECTORS, {"label": LABELS, "dataset_id": ids * 0 + 7})) == 0.0
    with raises_problem(key="exclude_datasets", reason="do not say which dataset"):
        influence.loss(VECTORS, LABELS)


@pytest.mark.parametrize("width", [3, 9])
def test_widths_may_differ(old, width):
    vectors = np.random.default_rng(1).normal(size=(6, width)).astype("float32")
    padded = np.pad(vectors, [(0, 0), (0, max(0, 5 - width))])
    influence = Influence(old, NAMES, "old_classes")
    assert value(influence.loss(vectors, LABELS)) == pytest.approx(expected(old, padded, LABELS).sum() / 4, rel=1e-5)


def test_gradients_reach_the_embedding_and_nothing_old(old):
    influence = Influence(old, NAMES, "old_classes")
    before, point = weights(influence), keras.Variable(VECTORS)
    _, grads = grad.value_and_grad(lambda: influence.loss(point.value, LABELS), [point])
    found = np.asarray(keras.ops.convert_to_numpy(grads[0]))
    assert (np.abs(found[[0, 2, 4, 5]]).sum(axis=1) > 0).all()
    assert not found[[1, 3]].any()
    assert not influence.trainable_variables
    assert same_bits(before, weights(influence))


def test_synthesised_weights_are_mean_directions(old):
    x, y = samples()
    means = unit(np.stack([unit(old.embed(x))[y == label].mean(axis=0) for label in range(4)], axis=1), 0)
    every = Influence(old, NAMES)
    for call in (every.loss, every.judge):
        with raises_problem(key="influence", reason="has no weights for the new classes yet"):
            call(VECTORS, LABELS)
    every.synthesise([(x[:40], y[:40]), (x[40:], y[40:])])
    assert np.allclose(keras.ops.convert_to_numpy(every.classifier.kernel), means, atol=1e-6)
    new = Influence(old, NAMES, "synthesise_new")
    new.synthesise([(x, y)])
    kernel = np.asarray(keras.ops.convert_to_numpy(new.classifier.kernel))
    assert new.classifier.class_names == ["cat", "ant", "bee", "dog"]
    assert kernel[:, :2].tobytes() == np.asarray(keras.ops.convert_to_numpy(old.classifier.kernel)).tobytes()
    assert np.allclose(kernel[:, 2:], means[:, [1, 3]], atol=1e-6)
    answers, wanted, known = new.judge(VECTORS, LABELS)
    assert keras.ops.convert_to_numpy(wanted).tolist() == [1, 2, 0, 3, 0, 1]
    assert keras.ops.convert_to_numpy(known).all()
    assert answers.shape == (6, 4)


def test_weights_are_synthesised_again_and_only_for_classes_that_lack_them(old):
    x, y = samples()
    new = Influence(old, NAMES, "synthesise_new")
    lacking = (y == 1) | (y == 3)  # the old model has cat and ant: no sample of theirs is needed
    new.synthesise([(x[lacking], y[lacking])])
    first = np.array(keras.ops.convert_to_numpy(new.classifier.kernel))
    new.synthesise([(x[lacking] + 1, y[lacking])])
    second = np.array(keras.ops.convert_to_numpy(new.classifier.kernel))
    assert np.array_equal(first[:, :2], second[:, :2])
    assert (np.abs(first[:, 2:] - second[:, 2:]).max(axis=0) > 1e-3).all()
    with raises_problem(key="bct", reason="no training sample is of class 'dog'"):
        new.synthesise([(x[y == 1], y[y == 1])])


def test_embeddings_are_the_same_in_batches(old):
    x, _ = samples(23)
    assert np.allclose(embed(old.embedding, x, 5), embed(old.embedding, x, 23), atol=1e-6)
    assert np.allclose(embed(old.embedding, x[:3], 5), embed(old.embedding, x, 23)[:3], atol=1e-6)


def test_distillation_teaches_what_has_no_old_label(old):
    x, _ = samples(6)
    influence = Influence(old, NAMES, "distill", temperature=2.0)
    kernel = unit(np.asarray(keras.ops.convert_to_numpy(old.classifier.kernel)), 0)
    soft = np.exp(log_softmax(16 * unit(old.embed(x)) @ kernel / 2))
    distilled = -4 * (soft * log_softmax(16 * unit(VECTORS) @ kernel / 2)).sum(axis=1)
    losses = np.where(np.isin(LABELS, [0, 2]), expected(old, VECTORS, LABELS), distilled)
    assert value(influence.loss(VECTORS, LABELS, x)) == pytest.approx(losses.mean(), rel=1e-4)


def test_the_old_model_is_a_frozen_copy():
    model = old_model()
    before = weights(model)
    old = OldModel(model, size=5)
    x, _ = samples()
    assert np.allclose(old.embed(x), embed(model, x), atol=1e-6)
    one_by_one = np.concatenate([old.embed(x[i : i + 1]) for i in range(3)])
    assert np.allclose(one_by_one, old.embed(x)[:3], atol=1e-5), "BatchNorm does not depend on the batch"
    assert model.trainable_variables
    assert not old.embedding.trainable_variables
    assert same_bits(before, weights(model))


def test_a_dense_layer_can_be_the_old_classifier(caplog):
    inner = backbone()
    head = keras.layers.Dense(2, name="head", activation="softmax")
    model = keras.Model(inner.inputs, head(inner.outputs[0]))
    old = OldModel(model, classifier="head", classes=["dog", "bee"])
    influence = Influence(old, NAMES, "old_classes")
    assert "not normalised" in caplog.text
    logits = VECTORS @ np.asarray(keras.ops.convert_to_numpy(head.kernel))
    losses = -log_softmax(logits)[[1, 3], [1, 0]]
    assert value(influence.loss(VECTORS, LABELS)) == pytest.approx(losses.mean(), rel=1e-4)
    extended = Influence(old, NAMES, "synthesise_new")
    extended.synthesise([samples()])
    lengths = np.linalg.norm(keras.ops.convert_to_numpy(extended.classifier.kernel), axis=0)
    assert lengths[2:] == pytest.approx([lengths[:2].mean()] * 2, rel=1e-5)


def test_zero_vectors_have_finite_gradients():
    point = keras.Variable(np.zeros((2, 5), "float32"))
    layer = Classifier(["a", "b"])
    layer.build((None, 5))
    _, grads = grad.value_and_grad(lambda: keras.ops.sum(layer(point.value)), [point])
    assert np.isfinite(keras.ops.convert_to_numpy(grads[0])).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OldModel(old_model(), size=512), "its embedding has 5 components, but 512 were expected"),
        (
            lambda: OldModel(backbone(), classifier="head", classes=["a"]),
            "old_classifier: received 'head', there is no such Dense layer",
        ),
        (lambda: Influence(OldModel(backbone()), NAMES, "distill"), "has no classifier, which variant=distill"),
        (lambda: Influence(OldModel(old_model(["x", "y"])), NAMES, "old_classes"), "matched by name"),
        (lambda: Influence(OldModel(old_model()), NAMES, "all"), "variant: received 'all'"),
        (lambda: Influence(OldModel(old_model()), NAMES, temperature=0), "temperature: received 0"),
        (lambda: Influence(OldModel(backbone()), NAMES).synthesise([samples(9, 3)]), "no training sample is of class"),
        (lambda: Influence(OldModel(backbone()), NAMES[:2]).synthesise([samples()]), "there are 2 classes"),
        (lambda: OldModel.load("no/such"), "no such file or directory: 'no/such'"),
        (lambda: OldModel.load(__file__), "expected a .keras file"),
        (lambda: OldModel.load("."), "name a run that has finished"),
        (lambda: embedding_part(keras.Sequential([keras.Input((6, 6)), keras.layers.Dense(2)])), "(batch, size)"),
        (lambda: with_classifier(backbone(), ["a", "a"]), "each once"),
        (lambda: embed(backbone(), np.zeros((3, 9))), "cannot read an array of shape (3, 9)"),
    ],
)
def test_bad_input_is_one_line(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_with_code_in_it_is_refused(tmp_path):
    made = keras.Sequential([keras.Input((6,)), keras.layers.Lambda(lambda x: x)])
    made.save(tmp_path / "code.keras")
    with raises_problem(key="old model", reason="cannot be loaded without its code"):
        OldModel.load(tmp_path / "code.keras")
    (tmp_path / "broken.keras").write_bytes(b"PK\x03\x04 no archive")
    with raises_problem(key="old model", reason="cannot be loaded"):
        OldModel.load(tmp_path / "broken.keras")
