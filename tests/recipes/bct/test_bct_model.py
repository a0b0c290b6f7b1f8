"""`BCTModel` for compiled Keras models, under `everstep.fit` and `model.fit`."""

import functools
import importlib
import sys

import keras
import numpy as np
import pytest
from bct_models import NAMES, backbone, old_model, same_bits, samples, weights

import everstep as es
from everstep.bct import BCTModel, DistillBCTModel, Influence, OldModel, embed, loss_func, with_classifier
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def influence() -> Influence:
    made = Influence(OldModel(old_model()), NAMES)
    made.synthesise([samples()])
    return made


def bct_model(influence=None, weight=1.0, cls=BCTModel, **settings) -> keras.Model:
    keras.utils.set_random_seed(1)
    plain = with_classifier(backbone(), NAMES)
    made = cls(inputs=plain.input, outputs=plain.output, influence=influence)
    made.compile(keras.optimizers.SGD(0.1), loss=loss_func(weight), **settings)
    return made


def fit_history(model, directory=None, epochs=2):
    return es.fit(model, *samples(), 16, epochs, validation_data=samples(32), model_dir=directory, verbose=0, seed=0)


@pytest.fixture(scope="module")
def trained_model(influence, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "new"
    before, model = weights(influence), bct_model(influence, metrics=["accuracy"])
    history = fit_history(model, directory)
    assert same_bits(before, weights(influence)), "the old classifier is never changed"
    return model, history, directory


def test_it_learns_and_reports_both(trained_model):
    _, history, _ = trained_model
    names = {"loss", "accuracy", "head_acc", "old_head_acc"}
    assert names | {f"val_{name}" for name in names} <= set(history.history)
    assert history.history["loss"][-1] < history.history["loss"][0]


def test_the_file_holds_the_new_model_alone_and_may_be_the_next_old_one(trained_model):
    model, _, directory = trained_model
    loaded = keras.saving.load_model(directory / "export" / "model.keras", compile=False)
    assert isinstance(loaded, BCTModel)
    assert loaded.influence is None
    assert loaded.count_params() == with_classifier(backbone(), NAMES).count_params()
    old = OldModel.load(directory)
    x, y = samples()
    assert np.allclose(old.embed(x), embed(model, x), atol=1e-6)
    assert old.class_names == NAMES
    third = Influence(old, [*NAMES, "elk"], "synthesise_new")
    third.synthesise([(x, y), (x[:4], np.full(4, 4))])
    assert third.classifier.class_names == [*NAMES, "elk"]


def test_the_same_call_again_has_nothing_to_do(trained_model, influence):
    model, _, directory = trained_model
    again = bct_model(influence, metrics=["accuracy"])
    fit_history(again, directory)
    assert same_bits(weights(again), weights(model))
    with raises_problem(key="loss", reason="weight 1.0 -> 0.5"):
        fit_history(bct_model(influence, weight=0.5, metrics=["accuracy"]), directory, epochs=3)


@pytest.mark.full
def test_weight_zero_is_a_plain_model_to_the_bit(influence):
    keras.utils.set_random_seed(1)
    inner = with_classifier(backbone(), NAMES)
    plain = keras.Model(inner.input, inner.output["logits"])
    plain.compile(keras.optimizers.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    zero = bct_model(influence, weight=0.0)
    fit_history(plain, epochs=1)
    fit_history(zero, epochs=1)
    assert same_bits(weights(plain), weights(zero))


def test_keras_fit_does_the_same(influence):
    """Distillation, with labels that name their dataset; a pair of outputs in place of the dict."""
    taught = Influence(OldModel(old_model()), NAMES, "distill", exclude_datasets=[1])
    before = weights(taught)
    keras.utils.set_random_seed(1)
    plain = with_classifier(backbone(), NAMES)
    make = functools.partial(DistillBCTModel, influence=taught)
    model = make(inputs=plain.inputs, outputs=plain.outputs)
    model.compile(keras.optimizers.SGD(0.1), loss=loss_func())
    x, y = samples()
    history = model.fit(x, {"label": y, "dataset_id": y % 2}, epochs=2, batch_size=16, verbose=0)
    assert history.history["loss"][1] < history.history["loss"][0]
    assert "old_head_acc" in history.history
    assert same_bits(before, weights(taught))


@pytest.mark.full
def test_a_fresh_process_can_load_it(tmp_path, monkeypatch):
    """In a process that has imported nothing but `from everstep.bct import OldModel`."""
    file = tmp_path / "new.keras"
    bct_model().save(file)
    known = keras.saving.get_custom_objects()
    for name in [
        name for name, one in known.items() if one.__module__.startswith(("everstep.bct", "everstep.recipes.bct"))
    ]:
        monkeypatch.delitem(known, name)
    monkeypatch.setattr(es, "bct", es.bct)  # this one comes back afterwards
    for name in [name for name in sys.modules if name.startswith(("everstep.bct", "everstep.recipes.bct"))]:
        monkeypatch.delitem(sys.modules, name)
    fresh = importlib.import_module("everstep.bct")
    assert fresh.OldModel is not OldModel
    assert fresh.OldModel.load(file).class_names == NAMES
    assert fresh.evaluate(file, file, samples(16)).rows["new/old"]["mAP"] > 0


def test_an_influence_for_other_labels_is_refused(influence):
    """It would silently use the wrong classes."""
    for names in (NAMES[::-1], NAMES[:3], [*NAMES, "elk"]):
        plain = with_classifier(backbone(), names)
        with raises_problem(key="influence", remedy="in the same order") as caught:
            BCTModel(plain.input, plain.output, influence=influence)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variant", ["synthesise_all", "synthesise_new"])
def test_weights_that_are_not_synthesised_yet_are_named(variant):
    """They hold NaN: one step would have made the new model's weights NaN as well."""
    model = bct_model(Influence(OldModel(old_model()), NAMES, variant))
    before = weights(model)
    with raises_problem(key="influence", remedy=r"call influence.synthesise\(\[\(x, y\)\]\) before training"):
        model.fit(*samples(16), verbose=0)
    assert same_bits(before, weights(model)[: len(before)])


def test_wrong_calls_are_named(influence):
    with raises_problem(key="weight", received=-1):
        loss_func(-1)
    with raises_problem(
        key="influence.variant", received="synthesise_all", reason="DistillBCTModel knows the variants distill"
    ):
        bct_model(influence, cls=DistillBCTModel)
    plain = with_classifier(backbone(), NAMES)
    with raises_problem(key="loss", received="mse", remedy="_func"):
        BCTModel(plain.input, plain.output).compile("sgd", loss="mse")
    single = BCTModel(plain.input, plain.output["logits"], influence=influence)
    single.compile("sgd", loss=loss_func())
    with raises_problem(reason="both embedding and logits"):
        fit_history(single)
