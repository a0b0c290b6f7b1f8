"""The line that says how to feed the device faster: once, for a run that has waited for long enough."""

import logging

import numpy as np
import pytest

from everstep.data import advice, workers
from everstep.data.config import DataConfig
from everstep.data.source import make_stream
from everstep.tracking.data_wait import DataWaitAdvice


def lines(caplog, windows):
    """Returns what is logged for windows of 100 steps: (seconds, share of waiting)."""
    tracker = DataWaitAdvice(lambda: "add workers")
    caplog.clear()
    caplog.set_level(logging.WARNING)
    tracker.start(0)
    for number, (seconds, share) in enumerate(windows, 1):
        tracker.log(100 * number, {"steps_per_second": 100 / seconds, "data_wait": share}, "train")
        tracker.log(100 * number, {"validation_loss": 0.1}, "validation")
    return [record.getMessage() for record in caplog.records]


def test_one_line_when_the_device_starves(caplog):
    assert lines(caplog, [(10, 0.5)] * 9) == ["training waited for data 50 % of the last 20 s: add workers"]


@pytest.mark.parametrize(
    "windows",
    [
        [(10, 0.5)] * 2,  # too short
        [(100, 1.0), (10, 0.0), (10, 0.0)],  # the first window does not count
        [(10, 0.1)] * 20,  # the data keeps up
    ],
)
def test_no_line(caplog, windows):
    assert lines(caplog, windows) == []


class Samples:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.float32([index]), index


def test_the_advice_fits_the_source(monkeypatch):
    monkeypatch.setattr(advice, "recommended_workers", lambda: 7)
    samples = make_stream(Samples(), DataConfig(global_batch_size=4, limit_batches=1), training=True, seed=0)
    assert "__getitems__" in advice.how_to_feed_faster(samples)
    assert "7 workers" in advice.how_to_feed_faster(samples)
    batches = make_stream(lambda: iter([(np.zeros((2, 1)), np.zeros(2))]), DataConfig(), training=True, seed=0)
    assert "PyDataset" in advice.how_to_feed_faster(batches)
    arrays = make_stream((np.zeros((8, 1)), np.zeros(8)), DataConfig(global_batch_size=4), training=True, seed=0)
    assert "memory" in advice.how_to_feed_faster(arrays)


def test_workers_follow_the_cores():
    assert 1 <= workers.recommended_workers() <= workers.MOST_WORKERS
