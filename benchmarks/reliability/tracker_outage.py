"""A tracking server that is down, dies, stops answering, is slow, or fails, and is back after a while.

`python -m benchmarks.reliability.tracker_outage` takes about five minutes, with `--small` about two. How it is
measured: `everstep.testing.reliability.tracker_outage`.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from everstep.testing.reliability.tracker_outage import (
    SCENARIOS,
    SMALL,
    Times,
    measure,
)
from everstep.testing.servers.mlflow_server import memory_folder


def main() -> int:
    """Runs all scenarios; returns 0 if every bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="outages of a few seconds")
    times = SMALL if parser.parse_args().small else Times()
    logging.basicConfig(format="  %(message)s", level=logging.WARNING)
    figures = []
    with tempfile.TemporaryDirectory() as folder, memory_folder() as memory:
        for scenario in SCENARIOS:
            figures.append(measure(scenario, Path(folder), memory, times))
            print(figures[-1].line(), flush=True)
    return 0 if all(one.passed() for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
