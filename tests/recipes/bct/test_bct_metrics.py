"""The retrieval figures against slow definitions, scikit-learn, and cases whose answer is known."""

import math
import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_curve

from everstep.bct import is_compatible, rank, tar_at_far, update_gain
from everstep.errors import UsageError
from everstep.recipes.bct.metrics import Comparison, accept_rates, same_width


def clusters(seed: int, count: int, classes: int = 5, size: int = 8, noise: float = 1.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    return (rng.normal(size=(classes, size))[labels] + noise * rng.normal(size=(count, size))), labels


def test_search_agrees_with_its_definition():
    (query, wanted), (gallery, held) = clusters(0, 40), clusters(1, 70)
    settings = {"block_bytes": 1000}
    found = rank(query, gallery, wanted, held, **settings)
    scores = np.concatenate([b.scores for b in Comparison(query, gallery, wanted, held, **settings).blocks()])
    exact = query @ gallery.T / np.linalg.norm(query, axis=1)[:, None] / np.linalg.norm(gallery, axis=1)
    assert np.abs(scores - exact).max() < 1e-6
    for i in range(40):
        mates = held == wanted[i]
        assert found.precision[i] == pytest.approx(average_precision_score(mates, scores[i]))
        assert found.place[i] == (scores[i][~mates] >= scores[i][mates].max()).sum() + 1
    assert found.top(1) == np.mean(found.place == 1)
    assert found.top(70) == 1.0


def test_average_precision_with_ties_is_that_of_scikit_learn():
    rng = np.random.default_rng(3)
    angles = rng.integers(4, size=60) * np.pi / 8  # four directions: most scores are tied
    gallery, held = np.stack([np.cos(angles), np.sin(angles)], axis=1), rng.integers(3, size=60)
    found = rank([[1.0, 0.0]], gallery, [1], held)
    assert found.mean_average_precision() == pytest.approx(average_precision_score(held == 1, np.cos(angles).round(6)))
    order = rng.permutation(60)
    assert rank([[1.0, 0.0]], gallery[order], [1], held[order]).precision == found.precision


def test_one_point_for_all_finds_nothing_first():
    found = rank(np.ones((6, 3)), np.ones((6, 3)), [0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], same_images=True)
    assert found.top(1) == 0.0
    assert found.mean_average_precision() == pytest.approx(1 / 5)
    assert tar_at_far(np.ones((6, 3)), np.ones((6, 3)), list("aabbcc"), list("aabbcc"), [0.0, 0.5]) == [0.0, 0.0]


def test_an_image_is_not_compared_with_itself_only_where_it_is_in_the_gallery():
    vectors, labels = np.eye(4), [0, 0, 1, 1]
    assert rank(vectors, vectors, labels, labels).top(1) == 1.0
    assert rank(vectors, vectors, labels, labels, same_images=True).top(1) == 0.0
    alone = rank(vectors, vectors, [0, 0, 1, 2], [0, 0, 1, 2], same_images=True)
    assert alone.mated.tolist() == [True, True, False, False]  # its only mate was itself


def test_accept_rates_are_exact():
    (query, wanted), (gallery, held) = clusters(4, 60), clusters(5, 80)
    comparison = Comparison(query, gallery, wanted, held)
    scores = np.concatenate([block.scores for block in comparison.blocks()])
    mates = wanted[:, None] == held[None, :]
    false, true = np.sort(scores[~mates])[::-1], scores[mates]
    rates = [0.0, 1e-3, 0.01, 0.1, 0.5, 0.999]
    expected = [(true > false[math.floor(rate * len(false) + 1e-9)]).mean() for rate in rates]
    assert tar_at_far(query, gallery, wanted, held, rates) == pytest.approx(expected, abs=0)
    # in blocks the last bits of products may differ, not more than a pair at the threshold
    assert tar_at_far(query, gallery, wanted, held, rates, block_bytes=400) == pytest.approx(expected, abs=2e-3)


def test_accept_rates_keep_the_rate_with_ties_and_signed_zeros():
    query, gallery = [[1.0, 0.0]], [[0.0, 1.0], [-0.0, -1.0], [1.0, 0.0], [0.0, 1.0]]
    assert tar_at_far(query, gallery, ["a"], ["b", "b", "a", "a"], [0.0, 0.9]) == [0.5, 0.5]


def on_a_grid(seed, count, classes):
    """Unit vectors whose products are exact multiples of a quarter, so that most scores are tied; and labels."""
    rng = np.random.default_rng(seed)
    return rng.choice([-0.5, 0.5], size=(count, 4)), rng.integers(classes, size=count)


def by_the_definitions(query, gallery, wanted, held, same_images):
    """Average precision, rank, best mate's and best other's score of each query, pair by pair, in plain Python."""
    found = []
    for i, label in enumerate(wanted):
        scores = {j: float(query[i] @ gallery[j]) for j in range(len(gallery)) if not (same_images and i == j)}
        mates = [j for j in scores if held[j] == label]
        others = [scores[j] for j in scores if held[j] != label]
        precisions = []
        for mate in mates:
            at_least = [j for j in scores if scores[j] >= scores[mate]]
            precisions.append(sum(held[j] == label for j in at_least) / len(at_least))
        best = max((scores[j] for j in mates), default=-math.inf)
        place = 1 + sum(score >= best for score in others) if mates else 0
        found.append((sum(precisions) / len(mates) if mates else None, place, best, max(others, default=-math.inf)))
    return found


@pytest.mark.parametrize("same_images", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_figure_is_that_of_its_definition(seed, same_images):
    query, wanted = on_a_grid(seed, 30, classes=12)
    gallery, held = (query, wanted) if same_images else on_a_grid(seed + 10, 40, classes=10)
    found = rank(query, gallery, wanted, held, same_images=same_images, block_bytes=500)
    single = by_the_definitions(query, gallery, wanted, held, same_images)
    mated = [one for one in single if one[0] is not None]
    assert 0 < len(mated) < len(single)
    assert found.mean_average_precision() == pytest.approx(sum(one[0] for one in mated) / len(mated))
    for k in (1, 3, 10):
        assert found.top(k) == pytest.approx(sum(one[1] <= k for one in mated) / len(mated))
    alarms = [one[3] for one in single if one[0] is None]
    for fpir in (0.0, 0.2, 0.5):
        thresholds = sorted({*alarms, -2.0})  # the lowest that keeps the rate: what is above it is accepted
        threshold = next(t for t in thresholds if sum(alarm > t for alarm in alarms) <= fpir * len(alarms) + 1e-9)
        accepted = sum(one[1] == 1 and one[2] > threshold for one in mated)
        assert found.tpir_at_fpir(fpir) == pytest.approx(accepted / len(mated))


@pytest.mark.parametrize("seed", range(3))
def test_accept_rates_are_those_of_a_roc_curve(seed):
    """The highest true accept rate on the curve of all pairs whose false accept rate is not above the one asked for."""
    (query, wanted), (gallery, held) = clusters(seed, 40), clusters(seed + 10, 60)
    pairs = np.concatenate([block.scores.reshape(-1) for block in Comparison(query, gallery, wanted, held).blocks()])
    mates = (wanted[:, None] == held[None, :]).reshape(-1)
    false_rates, true_rates, _ = roc_curve(mates, pairs, drop_intermediate=False)
    rates = [0.0, 1e-3, 0.01, 0.1, 0.5]
    expected = [true_rates[false_rates <= rate].max() for rate in rates]
    assert tar_at_far(query, gallery, wanted, held, rates) == pytest.approx(expected)


def test_identification_needs_rank_and_threshold():
    gallery, held = np.eye(3), ["a", "b", "c"]
    query = [[1, 0.2, 0], [0.9, 1, 0], [0.2, 1, 0], [0.3, 0.3, 0.9], [0, 0.5, 1]]
    found = rank(query, gallery, ["a", "a", "b", "x", "y"], held)
    assert found.mated.tolist() == [True, True, True, False, False]
    assert found.tpir_at_fpir(0.0) == pytest.approx(2 / 3)  # the second query's first answer is a wrong one
    assert rank([[0.9, 0.8, 0]], gallery, ["a"], held).mated.all()
    strict = rank([[1, 0.9, 0], [0, 0, 1]], gallery, ["a", "x"], held)
    assert strict.tpir_at_fpir(0.0) == 0.0  # right, but below the false alarm's score
    assert strict.tpir_at_fpir(0.99) == 0.0
    more = rank([[1, 0.9, 0], [0, 0, 1], [0.5, 0.5, 0.5]], gallery, ["a", "x", "y"], held)
    assert more.tpir_at_fpir(0.5) == 1.0


def test_widths_are_made_equal_before_lengths():
    assert same_width(np.array([[3.0, 4.0, 12.0]]), 2).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    assert same_width(np.array([[3.0, 4.0]]), 3).tolist() == [[pytest.approx(0.6), pytest.approx(0.8), 0.0]]
    wide, narrow = np.array([[1.0, 0.0, 99.0], [0.0, 1.0, 99.0]]), np.eye(2)
    assert rank(wide, narrow, [0, 1], [0, 1]).top(1) == 1.0
    assert rank(narrow, np.eye(3)[:2], [0, 1], [0, 1]).top(1) == 1.0


def test_memory_stays_small():
    """Twenty thousand against twenty thousand would be 1.6 GB of scores at once."""
    vectors, labels = clusters(6, 20_000, classes=2000, size=4)
    comparison = Comparison(vectors[:300], vectors, labels[:300], labels, block_bytes=1 << 20)
    tracemalloc.start()
    sizes = [block.scores.nbytes for block in comparison.blocks()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(sizes) == 24
    assert max(sizes) <= 1 << 20
    assert peak < 4 << 20


def test_accept_rates_take_little_more_than_their_block():
    """Copies of all its pairs took most of the time, and eight times the memory."""
    vectors, labels = clusters(7, 1500, classes=50, size=4)
    comparison = Comparison(vectors, vectors, labels, labels, same_images=True)
    tracemalloc.start()
    accept_rates(comparison, [1e-3, 1e-2])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * (4 * 1500 * 1500)


def test_gain_and_criterion():
    assert update_gain(0.8, 0.7, 0.9) == pytest.approx(0.5)
    assert update_gain(0.6, 0.7, 0.9) == pytest.approx(-0.5)
    assert math.isnan(update_gain(0.8, 0.7, 0.7))
    assert is_compatible(0.71, 0.7)
    assert not is_compatible(0.7, 0.7)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank(np.zeros((0, 2)), [[1.0, 0]], [], [0]), "query: is empty"),
        (lambda: rank([[1.0, 0]], np.zeros((0, 2)), [0], []), "gallery: is empty"),
        (lambda: rank([[1.0]], [[1.0]], [0, 1], [0]), "1 vectors, but labels of shape (2,)"),
        (lambda: rank([[np.nan]], [[1.0]], [0], [0]), "not finite"),
        (lambda: rank([1.0], [[1.0]], [0], [0]), "query: expected vectors (samples, size), not an array of shape (1,)"),
        (lambda: rank([[1.0]], [[1.0], [2.0]], [0], [0, 1], same_images=True), "1 queries cannot be the 2 images"),
        (lambda: rank([[1.0]], [[1.0]], [0], [1]).mean_average_precision(), "no query has a mate"),
        (lambda: rank([[1.0]], [[1.0]], [0], [0]).tpir_at_fpir(0.1), "every query has a mate"),
        (lambda: rank([[1.0]], [[1.0]], [0], [0]).tpir_at_fpir(1.0), "fpir: received 1.0"),
        (lambda: rank([[1.0]], [[1.0]], [0], [0]).top(0), "k: received 0"),
        (lambda: tar_at_far([[1.0]], [[1.0]], [0], [0]), "1 true and 0 false pairs"),
        (lambda: tar_at_far([[1.0]], [[1.0]], [0], [0], [2.0]), "far: received 2.0"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(UsageError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
