"""Under which names a metric is found."""

import pytest

from everstep.tracking import find_logged, spellings

METRICS = {
    "train": {"training_loss": 1, "accuracy": 2, "norm": 3},
    "validation": {"validation_loss": 4, "accuracy": 5, "head/validation_loss": 6},
}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *((name, ("validation", "validation_loss")) for name in ("validation_loss", "val_loss", "loss")),
        *((name, ("validation", "accuracy")) for name in ("validation_accuracy", "val_accuracy", "accuracy")),
        *((name, ("train", "training_loss")) for name in ("training_loss", "train_loss")),
        *((name, ("train", "accuracy")) for name in ("training_accuracy", "train_accuracy")),
        *((name, ("train", "norm")) for name in ("norm", "train_norm")),
        *((name, None) for name in ("val_norm", "los", "")),
        ("head/val_loss", ("validation", "head/validation_loss")),
    ],
)
def test_in_logs_by_kind(name, found):
    assert find_logged(name, METRICS) == found


def test_in_a_history():
    assert spellings("val_loss") == ["val_loss", "validation_loss"]
    assert spellings("validation_loss") == ["validation_loss", "val_loss"]
    assert spellings("loss") == ["loss", "training_loss"]
