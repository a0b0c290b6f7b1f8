"""Class labels: valid ones pass, and the first invalid one is named."""

import numpy as np
import pytest

from everstep.data import check_labels
from everstep.testing.problems import raises_problem


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 2], np.uint8([2]), [0.0, 2.0], np.zeros((4, 8, 1), "int32"), [True, False], [], np.float32([])],
)
def test_valid_labels(labels):
    check_labels(labels, 3, "the training labels")


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        (
            [0, 1, 3, 5],
            {
                "reason": "the training labels .* 0 to 2, but 2 of 4 are not; the first is 3 at index 2",
                "remedy": "correct the labels",
            },
        ),
        ([-1, 0], {"reason": "the first is -1 at index 0"}),
        ([0.0, 0.5], {"reason": "the first is 0.5 at index 1"}),
        ([0.0, np.nan], {"reason": "the first is nan at index 1"}),
        ([np.inf], {"reason": "the first is inf"}),
        (np.array([[0, 1], [7, 0]]), {"reason": r"1 of 4 are not; the first is 7 at index \(1, 0\)"}),
        (np.array(255, "uint8"), {"reason": r"the first is 255 at index \(\)"}),
        (["cat"], {"remedy": "encode class labels"}),
        ([1j], {"reason": "complex"}),
    ],
)
def test_invalid_labels_are_named(labels, fields):
    with raises_problem(**fields):
        check_labels(labels, 3, "the training labels")
