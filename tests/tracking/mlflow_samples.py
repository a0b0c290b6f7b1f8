"""What the tests with a real MLflow server share: points to log, and what must be there in the end."""

import time

from everstep.testing.servers.mlflow_server import points_of, runs_of

PROGRAM = """
    import sys, time
    from everstep.tracking.mlflow import MlflowNames, MlflowTracker
    from everstep.tracking.delivery import SendDelays

    directory, name, uri = sys.argv[1:]
    tracker = MlflowTracker(directory, name, MlflowNames(name), uri, delays=SendDelays(after_success=0.02))
    tracker.start(0)
    for step in range(1, 100_000):
        tracker.log(step, {"loss": 1.0 / step, "accuracy": step / 1000}, "train")
        if step % 10 == 0:
            tracker.log(step, {"loss": 2.0 / step}, "validation")
        print(step, flush=True)
        time.sleep(0.002)
"""
"""Trains until it is killed, and prints each step: `program DIRECTORY NAME URI`."""


def train(tracker, steps, pause=0.0005):
    """Logs two numbers per step and one per tenth; returns the seconds that each call took."""
    seconds = []
    for step in steps:
        began = time.perf_counter()
        tracker.log(step, {"loss": 1.0 / step, "accuracy": step / 1000}, "train")
        seconds.append(time.perf_counter() - began)
        if step % 10 == 0:
            tracker.log(step, {"loss": 2.0 / step}, "validation")
        time.sleep(pause)
    return seconds


def expected(steps):
    points = {("loss", step, 1.0 / step) for step in steps} | {("accuracy", step, step / 1000) for step in steps}
    return points | {("validation_loss", step, 2.0 / step) for step in steps if step % 10 == 0}


def assert_nobody_waited(seconds):
    assert sorted(seconds)[int(len(seconds) * 0.99)] < 0.05


def assert_recorded(uri, name, steps):
    """Each point is there, once, in the only run there is; returns that run."""
    (run,) = runs_of(uri, name)
    points = points_of(uri, run)
    assert set(points) == expected(steps)
    assert set(points.values()) == {1}
    return run


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def arrived(uri, name):
    """Returns the largest of a run's newest numbers on the server; 0 while there is none."""
    runs = runs_of(uri, name)
    return max(runs[0].data.metrics.values(), default=0) if runs else 0
