"""Labels: which of them are the same, and which are refused in one line."""

import numpy as np
import pytest
from bct_models import NAMES, TinyTask, backbone, old_model, params, samples

from everstep.bct import BCTModel, Influence, OldModel, evaluate, rank, with_classifier
from everstep.errors import UsageError
from everstep.recipes.bct.metrics import as_labels, shared_codes

pytestmark = pytest.mark.backend

BIG = 2**63


@pytest.mark.parametrize(
    ("query", "gallery", "same"),
    [
        (np.array([1.0, 2.0], "float32"), np.array([1, 3]), [[True, False], [False, False]]),
        (np.array([True, False]), [1, 0], [[True, False], [False, True]]),
        (np.array([b"ant", b"bee"]), ["bee", "ant"], [[False, True], [True, False]]),
        (["é", "è"], np.array(["è".encode(), "é".encode()], dtype=object), [[False, True], [True, False]]),
        (np.array([b"\xff", b"\xfe"]), np.array([b"\xfe", b"\xfd"]), [[False, False], [True, False]]),
        (np.array([BIG, BIG + 1], "uint64"), np.array([-1, 2**62]), [[False, False], [False, False]]),
        (np.array([BIG, BIG + 1], "uint64"), np.array([BIG + 1, 7], "uint64"), [[False, False], [True, False]]),
        (["1", "01"], ["1", "1.0"], [[True, False], [False, False]]),
        ([np.int64(4), 5], [5.0, np.float32(4)], [[False, True], [True, False]]),
    ],
)
def test_the_same_label_is_the_same_in_any_type(query, gallery, same):
    first, second = shared_codes(as_labels(query), as_labels(gallery))
    assert (first[:, None] == second).tolist() == same


@pytest.mark.parametrize(
    ("query", "gallery", "message"),
    [
        (["ant"], [1], "the query's labels are texts (the first is 'ant'), the gallery's are numbers (1)"),
        ([1], np.array([b"1"]), "the query's labels are numbers (the first is 1), the gallery's are texts ('1')"),
        (["ant", 1], ["ant"], "query: has texts ('ant') and numbers (1) as labels"),
        ([0], [1.5], "gallery: received 1.5, which cannot be a label"),
        ([np.nan], [1], "query: received nan, which cannot be a label"),
        ([2.0**60], [1], "to 2**53 as floats"),
        ([None], [1], "query: received None, a NoneType cannot be a label"),
        (np.array(["2020-01-01"], "M8[D]"), [1], "labels of type datetime64[D]"),
        (np.eye(3), [0, 1, 2], "labels of shape (3, 3): pass one label each; of one-hot labels, argmax(axis=-1)"),
    ],
)
def test_labels_that_cannot_be_compared_are_refused(query, gallery, message):
    with pytest.raises(UsageError) as caught:
        rank(np.eye(len(query), 4), np.eye(len(gallery), 4), query, gallery)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def refused(call) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert "of one-hot labels, give argmax(axis=-1)" in str(caught.value)
    return str(caught.value)


def test_one_hot_labels_are_refused_everywhere():
    x, y = samples(8)
    hot, vectors = np.eye(4, dtype="float32")[y], np.ones((8, 5), "float32")
    answers = {"embedding": vectors, "logits": np.ones((8, 4), "float32")}
    old = OldModel(old_model())
    influence = Influence(old, NAMES, "old_classes")
    assert "the shape (8, 4)" in refused(lambda: influence.loss(vectors, hot))
    refused(lambda: influence.loss(vectors, {"label": hot}))
    refused(lambda: Influence(old, NAMES).synthesise([(x, hot)]))
    assert "data: the labels have the shape (8, 4)" in refused(lambda: evaluate("old", "new", (x, hot)))
    plain = with_classifier(backbone(), NAMES)
    model = BCTModel(plain.input, plain.output, influence=influence)
    refused(lambda: model.compute_loss(x, hot, answers))
    refused(lambda: TinyTask(params().task).build_losses(hot, answers))


def test_blocks_of_batches_are_no_one_hot_labels():
    """Where batches are stacked, the host checks labels of shape (batches, samples)."""
    x, y = samples(8)
    TinyTask(params().task).check_batch((x.reshape(2, 4, 6), y.reshape(2, 4)))
