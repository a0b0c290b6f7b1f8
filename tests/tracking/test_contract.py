import collections
import csv
import json
from collections.abc import Callable

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from everstep.testing import trackers
from everstep.tracking.history import HistoryTracker
from everstep.tracking.jsonl import JsonLinesTracker
from everstep.tracking.plugins import TrackedRun, make_trackers
from everstep.tracking.tensorboard import TensorBoardTracker
from everstep.tracking.tracker import BackgroundTracker, MemoryTracker, MultiTracker, Tracker

from .plugin_samples import install


def merged(points):
    seen = collections.defaultdict(dict)
    for step, name, value in points:
        assert name not in seen[step], f"{name} twice at step {step}"
        seen[step][name] = value
    return dict(seen)


def read_history(directory):
    path = directory / "history.csv"
    rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    return merged((int(row["step"]), k, float(v)) for row in rows for k, v in row.items() if v and k != "step")


def read_tensorboard(directory):
    points = []
    for kind in ("train", "validation"):
        events = EventAccumulator(str(directory / kind)).Reload() if (directory / kind).exists() else None
        for tag in events.Tags()["scalars"] if events else ():
            points += [(event.step, tag, event.value) for event in events.Scalars(tag)]
    return merged(points)


class Case:
    """One kind of tracker over one directory: how to make it, how to read what it wrote."""

    def __init__(self, make: Callable[[], Tracker], read: Callable[[], trackers.Recorded]) -> None:
        self.make = make
        self.read = read


def memory_case(directory):
    tracker = MemoryTracker()
    return Case(lambda: tracker, lambda: merged((p.step, k, v) for p in tracker.points for k, v in p.logs.items()))


def history_case(directory):
    return Case(lambda: HistoryTracker(directory / "history.csv"), lambda: read_history(directory))


def tensorboard_case(directory):
    return Case(lambda: TensorBoardTracker(directory), lambda: read_tensorboard(directory))


def multi_case(directory):
    make = lambda: MultiTracker([HistoryTracker(directory / "history.csv"), TensorBoardTracker(directory)])  # noqa: E731

    def read():
        assert str(read_history(directory)) == str(read_tensorboard(directory))
        return read_history(directory)

    return Case(make, read)


def background_case(directory):
    return Case(lambda: BackgroundTracker(HistoryTracker(directory / "history.csv")), lambda: read_history(directory))


def jsonl_case(directory):
    path = directory / "metrics.jsonl"

    def read():
        records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        own = ("step", "kind", "time")
        return merged((r["step"], name, float(v)) for r in records for name, v in r.items() if name not in own)

    return Case(lambda: JsonLinesTracker(path), read)


def plugin_case(directory):
    """A tracker of another package, as it is made for a run."""
    run = TrackedRun(directory, "id", "some/name", "jax", 1, {})

    def read():
        found = [(path.stem.split("-")[1], json.loads(path.read_text())) for path in directory.glob("folder/*.json")]
        return merged((int(step), name, value) for step, logs in found for name, value in logs.items())

    return Case(lambda: make_trackers({"folder": {}}, run)[0], read)


CASES = [memory_case, history_case, tensorboard_case, multi_case, background_case, jsonl_case, plugin_case]


@pytest.fixture(params=CASES, ids=lambda make: make.__name__)
def case(request, tmp_path, tmp_path_factory, monkeypatch):
    if request.param is plugin_case:
        install(tmp_path_factory.mktemp("site"), monkeypatch)
    return request.param(tmp_path)


@pytest.mark.parametrize("check", trackers.CHECKS, ids=lambda check: check.__name__)
def test_contract(case, check):
    check(case.make, case.read)


def test_no_file_is_made_before_the_first_log(case, tmp_path):
    trackers.check_records_nothing_before_the_first_log(case.make, case.read)
    assert not list(tmp_path.iterdir())
