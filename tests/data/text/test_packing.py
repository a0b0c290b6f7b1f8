"""Packing: every token exactly once, nothing across documents, the same for the same (seed, epoch)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.data.labels import IGNORED
from everstep.data.text.packing import Packing, pack
from everstep.data.text.plans import BucketPlan, PackedPlan
from everstep.data.text.stream import Pieces, TextStream
from everstep.data.text.token_store import TokenStore

lengths_of = st.lists(st.integers(1, 16), min_size=1, max_size=60)


def stream_of(lengths, *, plan=None, capacity=16, seed=3, batch_size=4, drop=False, counts=None):
    """A stream over documents of these lengths; a token's value tells its document and its place in it."""
    lengths = np.array(lengths)
    tokens = np.concatenate([100 * number + np.arange(length + 1) for number, length in enumerate(lengths)])
    offsets = np.concatenate([[0], np.cumsum(lengths + 1)])
    pieces = Pieces(offsets[:-1], lengths, np.arange(len(lengths)))
    plan = plan or PackedPlan(lengths, capacity, batch_size, seed, drop)
    return TextStream(TokenStore(tokens, offsets, counts), pieces, plan, padding=-7)


def predictions(batches):
    """All (token, label) pairs that count, and checks of what a model would see."""
    found = []
    for inputs, labels in batches:
        tokens, mask = inputs["token_ids"], inputs["padding_mask"]
        segments, positions = inputs["segment_ids"], inputs["positions"]
        assert ((segments > 0) == mask).all()
        assert (tokens[~mask] == -7).all()
        assert (labels[~mask] == IGNORED).all()
        assert (tokens[mask] % 100 == positions[mask]).all(), "positions begin anew in each document"
        for row_tokens, row_segments, row_mask in zip(tokens, segments, mask, strict=True):
            pairs = {*zip((row_tokens // 100)[row_mask].tolist(), row_segments[row_mask].tolist(), strict=True)}
            assert len({document for document, _ in pairs}) == len(pairs), "a segment is one document"
            assert len({segment for _, segment in pairs}) == len(pairs), "a document is one segment"
        counting = labels != IGNORED
        assert (labels[counting] == tokens[counting] + 1).all(), "no label is of another document"
        found += zip(tokens[counting].tolist(), labels[counting].tolist(), strict=True)
    return found


@given(lengths_of, st.integers(0, 5), st.integers(0, 3))
@settings(deadline=None)
def test_every_token_once_and_no_label_across_documents(lengths, seed, epoch):
    stream = stream_of(lengths, seed=seed)
    expected = sorted((100 * n + i, 100 * n + i + 1) for n, length in enumerate(lengths) for i in range(length))
    assert sorted(predictions(stream.open(epoch, 0))) == expected


@given(lengths_of, st.integers(0, 3), st.data())
@settings(deadline=None)
def test_a_batch_follows_from_seed_and_epoch_alone(lengths, epoch, data):
    straight = list(stream_of(lengths).open(epoch, 0))
    start = data.draw(st.integers(0, len(straight)))
    used = stream_of(lengths)
    list(used.open(epoch + 1, 0))
    for stream in (stream_of(lengths), used):
        for one, other in zip(stream.open(epoch, start), straight[start:], strict=True):
            assert all((one[0][name] == other[0][name]).all() for name in one[0])
            assert (one[1] == other[1]).all()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=24))
def test_patterns_hold_all_documents_and_fit(counts):
    capacity = len(counts)
    found = pack(np.array([0, *counts]), capacity)
    held = np.zeros(capacity + 1, int)
    for pattern, rows in found:
        assert sum(pattern) <= capacity
        assert rows > 0
        np.add.at(held, list(pattern), rows)
    assert held.tolist() == [0, *counts]


@given(lengths_of)
def test_no_two_rows_would_fit_in_one(lengths):
    """So at least half of all rows' room is used, in the worst case."""
    found = pack(np.bincount(lengths, minlength=17), 16)
    loads = sorted(sum(pattern) for pattern, rows in found for _ in range(min(rows, 2)))
    assert len(loads) < 2 or loads[0] + loads[1] > 16


def test_packing_is_tight_for_usual_lengths():
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 1, 20_000).astype(int), 1, 1024)
    packing = Packing(lengths, 1024, seed=0)
    assert lengths.sum() / (len(packing) * 1024) > 0.995


def test_epochs_mix_documents_differently():
    lengths = [5, 5, 5, 5, 6, 6, 6, 6, 16, 16]
    packing = Packing(np.array(lengths), 16, seed=0)
    rows = np.arange(len(packing))
    groups = []
    for epoch in range(4):
        documents, sizes = packing.documents(epoch, rows)
        groups.append(frozenset(frozenset(part.tolist()) for part in np.split(documents, np.cumsum(sizes)[:-1])))
    assert len(set(groups)) > 1


def test_without_seed_the_order_is_fixed():
    packing = Packing(np.array([3, 9, 4, 12]), 16, seed=None)
    every = [packing.documents(epoch, np.arange(len(packing)))[0].tolist() for epoch in range(3)]
    assert every[0] == every[1] == every[2]


# -- buckets -----------------------------------------------------------------------------------------------------------


@given(lengths_of, st.integers(0, 3), st.integers(1, 5))
@settings(deadline=None)
def test_buckets_have_every_document_once_in_few_shapes(lengths, epoch, batch_size):
    plan = BucketPlan(np.array(lengths), [4, 8, 16], batch_size, 3, drop_remainder=False)
    stream = stream_of(lengths, plan=plan)
    batches = list(stream.open(epoch, 0))
    assert len(batches) == len(plan)
    expected = sorted((100 * n + i, 100 * n + i + 1) for n, length in enumerate(lengths) for i in range(length))
    assert sorted(predictions(batches)) == expected
    shapes = [batch[1].shape for batch in batches]
    assert all(shape[1] in (4, 8, 16) for shape in shapes)
    assert all(rows == batch_size for rows, _ in shapes[:-1]), "only the last batch may be short"


def test_buckets_save_padding():
    lengths = np.random.default_rng(0).integers(1, 129, 1000)
    one = BucketPlan(lengths, [128], 10, 0, True)
    four = BucketPlan(lengths, [32, 64, 96, 128], 10, 0, True)
    assert len(one) == len(four) == 100
    positions = [sum(plan.batch(0, number).length for number in range(100)) * 10 for plan in (one, four)]
    assert positions[1] < 0.7 * positions[0]


@pytest.mark.parametrize("rows", [slice(0, 2), slice(1, 3), slice(3, 4), slice(0, 4)])
def test_rows_of_a_batch(rows):
    stream = stream_of([3, 9, 4, 12, 7, 1, 16, 2, 11, 5, 5, 5, 13, 8])
    inputs, labels = next(stream.open(2, 0))
    part = next(stream.open_rows(2, 0, lambda size: rows))
    assert part.batch_size == 4
    assert all((part.data[0][name] == inputs[name][rows]).all() for name in inputs)
    assert (part.data[1] == labels[rows]).all()
