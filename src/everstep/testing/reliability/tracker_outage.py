"""A tracking server that is down, dies, stops answering, is slow, or fails, and is back after a while.

Per scenario a loop of short steps logs three numbers per step to a real `mlflow server`, with the settings of a real
run; something goes wrong; in the end the points on the server are checked. The bars: the 99th percentile of what
tracking adds to a step is at most 50 ms, every point is on the server, none twice, in one run.

A busy machine delays every step, tracked or not. So a process beside runs the same steps without tracking, at the same
time; what it is delayed by is not held against tracking.
"""

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from everstep.testing.servers.mlflow_server import MlflowServer, Points, points_of, runs_of
from everstep.testing.servers.proxy import Proxy
from everstep.tracking import MlflowNames, MlflowTracker

STEP_SECONDS = 0.005
LEAST_STEPS = 60
BAR_SECONDS = 0.050
RECOVERY_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class Times:
    """How long a scenario takes, in seconds.

    Attributes:
      well: Before and after the trouble.
      outage: Without a server.
      latency: What a slow server takes for a request.
    """

    well: float = 5.0
    outage: float = 20.0
    latency: float = 30.0


SMALL = Times(well=1.0, outage=3.0, latency=4.0)


class Loop:
    """Steps that take a while, each followed by a log.

    Attributes:
      steps: How many were run.
      log_seconds: What each call of the tracker took.
      step_seconds: What each step took, with its call.
    """

    def __init__(self, tracker: MlflowTracker) -> None:
        self._tracker = tracker
        self.steps = 0
        self.log_seconds: list[float] = []
        self.step_seconds: list[float] = []

    def run(self, seconds: float) -> None:
        """Runs steps for a while, and on a slow machine until there are some."""
        end, least = time.monotonic() + seconds, self.steps + LEAST_STEPS
        while time.monotonic() < end or self.steps < least:
            self._step()

    def _step(self) -> None:
        began = time.perf_counter()
        time.sleep(STEP_SECONDS)
        self.steps += 1
        before = time.perf_counter()
        self._tracker.log(self.steps, _numbers(self.steps), "train")
        after = time.perf_counter()
        self.log_seconds.append(after - before)
        self.step_seconds.append(after - began)

    def expected(self) -> set[tuple[str, int, float]]:
        """Returns what the server should have."""
        return {(k, step, v) for step in range(1, self.steps + 1) for k, v in _numbers(step).items()}


def _numbers(step: int) -> dict[str, float]:
    return {"loss": 1.0 / step, "accuracy": step / 1e6, "learning_rate": 0.001}


_EMPTY_STEPS = f"""
import select, sys, time
seconds = []
while not select.select([sys.stdin], [], [], 0)[0]:
    began = time.perf_counter()
    time.sleep({STEP_SECONDS})
    seconds.append(time.perf_counter() - began)
print(*seconds)
"""


class EmptySteps:
    """Inside the block a process of its own runs steps without tracking.

    Attributes:
      seconds: What each of them took; known after the block.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> "EmptySteps":
        command = [sys.executable, "-c", _EMPTY_STEPS]
        self._process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *exception: object) -> None:
        printed, _ = self._process.communicate()  # closes its input, at which it ends
        self.seconds = [float(text) for text in printed.split()]


Scenario = Callable[[MlflowServer, Proxy, Loop, Times], None]


def down_at_the_start(server: MlflowServer, proxy: Proxy, loop: Loop, times: Times) -> None:
    """The server is started while the run has been training for a while."""
    loop.run(times.outage)
    server.start()
    loop.run(times.well)


def dies_and_returns(server: MlflowServer, proxy: Proxy, loop: Loop, times: Times) -> None:
    """The server is killed in the middle, and started again."""
    loop.run(times.well)
    server.kill()
    loop.run(times.outage)
    server.start()
    loop.run(times.well)


def stops_answering(server: MlflowServer, proxy: Proxy, loop: Loop, times: Times) -> None:
    """The server accepts connections and does not answer (SIGSTOP)."""
    loop.run(times.well)
    server.pause()
    loop.run(times.outage)
    server.resume()
    loop.run(times.well)


def slow(server: MlflowServer, proxy: Proxy, loop: Loop, times: Times) -> None:
    """Every request takes long, and is carried out then."""
    loop.run(times.well)
    proxy.delay = times.latency
    loop.run(times.latency + 2 * times.well)
    proxy.delay = 0
    loop.run(times.well)


def fails(server: MlflowServer, proxy: Proxy, loop: Loop, times: Times) -> None:
    """Every request is answered with HTTP 500: first without, then after having been carried out."""
    loop.run(times.well)
    proxy.fault = "error"
    loop.run(times.outage / 2)
    proxy.fault = "lose_answers"
    loop.run(times.outage / 2)
    proxy.fault = "none"
    loop.run(times.well)


SCENARIOS: tuple[Scenario, ...] = (down_at_the_start, dies_and_returns, stops_answering, slow, fails)


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of one scenario; times in seconds.

    `delay_p99` is what steps without tracking took longer than they sleep, at the same time.
    """

    name: str
    log_p99: float
    log_max: float
    added_p99: float
    logged: int
    on_server: int
    missing: int
    duplicates: int
    runs: int
    recovery: float
    delay_p99: float = 0.0

    def passed(self) -> bool:
        """Returns whether every bar was met."""
        quick = max(self.log_p99, self.added_p99) <= BAR_SECONDS + self.delay_p99
        return quick and self.missing == self.duplicates == 0 and self.runs == 1

    def line(self) -> str:
        """Returns the figures on one line."""
        return (
            f"{self.name:18s} log() p99 {self.log_p99 * 1e3:6.2f} ms, max {self.log_max * 1e3:6.1f} ms | "
            f"step p99 {self.added_p99 * 1e3:+6.2f} ms, without tracking {self.delay_p99 * 1e3:+6.2f} ms | "
            f"points {self.logged}, on the server {self.on_server}, missing {self.missing}, "
            f"duplicates {self.duplicates}, runs {self.runs} | "
            f"complete {self.recovery:5.1f} s after the last step | {'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(scenario: Scenario, folder: Path, memory: Path, times: Times) -> Figures:
    """Runs one scenario on a server of its own.

    Args:
      scenario: What happens.
      folder: Where the run is.
      memory: Where the server is.
      times: How long it takes.
    """
    (memory / scenario.__name__).mkdir()
    server = MlflowServer(memory / scenario.__name__)
    if scenario is not down_at_the_start:
        server.start()
        server.wait()
    try:
        with Proxy(server.uri) as proxy:
            return _measure(scenario, server, proxy, folder / scenario.__name__, times)
    finally:
        server.kill()


def _measure(scenario: Scenario, server: MlflowServer, proxy: Proxy, run: Path, times: Times) -> Figures:
    uri = proxy.uri if scenario in (slow, fails) else server.uri
    tracker = MlflowTracker(run, scenario.__name__, MlflowNames("outage"), uri)
    tracker.start(0)
    loop = Loop(tracker)
    with EmptySteps() as empty:
        scenario(server, proxy, loop, times)
    server.wait()
    points, recovery = _until_complete(server.uri, loop)
    tracker.close()
    expected = loop.expected()
    return Figures(
        scenario.__name__.replace("_", " "),
        percentile(loop.log_seconds, 0.99),
        max(loop.log_seconds),
        percentile(loop.step_seconds, 0.99) - STEP_SECONDS,
        len(expected),
        len(expected & points.keys()),
        len(expected - points.keys()),
        points.total() - len(points) + len(points.keys() - expected),
        len(runs_of(server.uri, "outage")),
        recovery,
        percentile(empty.seconds, 0.99) - STEP_SECONDS,
    )


def _until_complete(uri: str, loop: Loop) -> tuple[Points, float]:
    """Waits until the server has all points, or for too long; returns what it has, and the seconds."""
    began = time.monotonic()
    expected = loop.expected()
    while True:
        runs = runs_of(uri, "outage")
        points = points_of(uri, runs[0]) if runs else Points()
        seconds = time.monotonic() - began
        if expected <= points.keys() or seconds > RECOVERY_SECONDS:
            return points, seconds
        time.sleep(1)


def percentile(values: list[float], share: float) -> float:
    """Returns the value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
