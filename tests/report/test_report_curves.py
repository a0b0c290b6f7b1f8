"""Curves from a history: names and kinds of columns, and the thinning of long curves."""

import math

import pytest

from everstep.report.run_data import MOST_POINTS, named, read_curves, thinned
from everstep.run.record import read

from .report_runs import resumed_run


@pytest.mark.parametrize(
    ("column", "metric", "kind"),
    [
        ("training_loss", "loss", "train"),
        ("validation_loss", "loss", "validation"),
        ("val_loss", "loss", "validation"),
        ("accuracy", "accuracy", "train"),
        ("validation_accuracy", "accuracy", "validation"),
        ("one/validation_loss", "one/loss", "validation"),
        ("validation_one/mae", "one/mae", "validation"),
        ("score", "score", "validation"),
    ],
)
def test_columns_have_a_metric_and_a_kind(column, metric, kind):
    assert named(column, {"score"}) == (metric, kind)


def test_a_history_over_two_attempts(tmp_path):
    run = resumed_run(tmp_path)
    curves = {curve.name: curve for curve in read_curves(run / "history.csv", read(run))}
    assert list(curves) == ["loss", "accuracy", "score", "learning_rate"]
    train, validation = curves["loss"].series
    assert (train.kind, validation.kind) == ("train", "validation")
    assert train.steps == list(range(2, 41, 2))  # the torn line is not there
    assert validation.steps == [10, 20, 30, 40]
    assert validation.values[0] == 1 / (1 + 10 / 8) + 0.1
    assert [series.kind for series in curves["score"].series] == ["validation"]
    assert [curve.side for curve in curves.values()] == [False, False, False, True]


def test_values_that_are_not_finite_are_gaps(tmp_path):
    (tmp_path / "history.csv").write_text("step,training_loss\n1,0.5\n2,nan\n3,inf\n4,0.25\n")
    (curve,) = read_curves(tmp_path / "history.csv", None)
    assert curve.series[0].values == [0.5, None, None, 0.25]


def test_no_history_gives_no_curves(tmp_path):
    assert read_curves(tmp_path / "history.csv", None) == []
    (tmp_path / "history.csv").write_text("")
    assert read_curves(tmp_path / "history.csv", None) == []


def test_long_series_keep_their_ends_and_extremes():
    points = [(step, math.sin(step / 1000)) for step in range(50_000)]
    points[31_234] = (31_234, 9.0)
    series = thinned("train", points)
    assert len(series.steps) <= MOST_POINTS
    assert series.total == 50_000
    assert (series.steps[0], series.steps[-1]) == (0, 49_999)
    assert series.steps == sorted(set(series.steps))
    assert max(series.values) == 9.0
    assert [points[step][1] for step in series.steps] == series.values
