"""What the tests cost: a pytest plugin that prints the CPU-seconds of the most expensive files and tests.

```sh
make test PYTEST_ARGS="-p tools.test_cost"
python -m pytest -n 2 --backend torch -p tools.test_cost --costs costs.json tests/cli
```

CPU time is counted, not the clock's, so that other work on the machine changes little. The processes that a test
started are included; a fixture counts for the first test that uses it. Beside each file stands how long
it took: a test that takes much longer than it computes waits for something. The first line is what nobody sees in a
test's duration: every worker starts, and imports every file of tests.
"""

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

Cost = tuple[float, float, float]
"""Seconds of CPU in this process, seconds of CPU in the processes it has started, and seconds on the clock."""

COLLECTION = "(start, and collection by every worker)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("costs", "what the tests cost in CPU-seconds")
    group.addoption("--costs", metavar="FILE", help="write the costs of all tests to this file, as JSON")
    group.addoption("--costs-shown", type=int, default=25, metavar="N", help="how many files, and how many tests")


def pytest_configure(config: pytest.Config) -> None:
    """Starts measuring."""
    config.pluginmanager.register(Costs(config))


class Costs:
    """Measures the tests of this process; a worker sends its costs to the main process, which prints them all."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tests: dict[str, Cost] = {}

    def pytest_collection_finish(self) -> None:
        """Counts what this process has done so far, from its start."""
        self.tests[COLLECTION] = (*_now()[:2], 0.0)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measures one test with its fixtures."""
        before = _now()
        try:
            return (yield)
        finally:
            after = _now()
            self.tests[item.nodeid] = (after[0] - before[0], after[1] - before[1], after[2] - before[2])

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Leaves the costs of a worker where the main process reads them."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = self.tests

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Adds what a worker of pytest-xdist has measured; one that died has sent nothing."""
        for name, cost in getattr(node, "workeroutput", {}).get("costs", {}).items():
            before = self.tests.get(name, (0.0, 0.0, 0.0))
            self.tests[name] = (before[0] + cost[0], before[1] + cost[1], before[2] + cost[2])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the most expensive files and tests."""
        shown = self.config.getoption("--costs-shown")
        file = self.config.getoption("--costs")
        if file:
            Path(file).write_text(json.dumps(self.tests, indent=1), "utf-8")
        terminalreporter.section("CPU-seconds: tests, the processes they started, together; seconds on the clock")
        files: dict[str, Counter[int]] = {}
        for name, cost in self.tests.items():
            files.setdefault(name.split("::")[0], Counter()).update(dict(enumerate(cost)))
        rows = {name: (costs[0], costs[1], costs[2]) for name, costs in files.items()}
        for chosen in (rows, {name: cost for name, cost in self.tests.items() if name != COLLECTION}):
            for name, cost in sorted(chosen.items(), key=lambda row: -_cpu(row[1]))[:shown]:
                terminalreporter.write_line(_row(name, cost))
            terminalreporter.write_line("")
        together = [sum(column) for column in zip(*self.tests.values(), strict=True)] or [0.0, 0.0, 0.0]
        terminalreporter.write_line(_row(f"{len(self.tests)} tests in {len(rows)} files", tuple(together)))


def _now() -> Cost:
    times = os.times()
    ended = times.children_user + times.children_system
    return times.user + times.system, ended + _running(), time.monotonic()


def _running() -> float:
    """Returns the CPU-seconds of child processes that still run, such as servers, and of their ended children."""
    ticks, pids = 0, []
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            pids += listed.read_text().split()
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has just ended
            fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _cpu(cost: Cost) -> float:
    return cost[0] + cost[1]


def _row(name: str, cost: Cost) -> str:
    return f"{cost[0]:8.1f} {cost[1]:8.1f} {_cpu(cost):8.1f} {cost[2]:8.1f}  {name}"
