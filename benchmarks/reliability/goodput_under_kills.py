"""A run that is killed every two minutes for twenty: how much of what it computes does it keep?

`python -m benchmarks.reliability.goodput_under_kills` takes about 22 minutes per backend. How it is measured:
`everstep.testing.reliability.goodput_under_kills`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.reliability import BACKENDS
from everstep.testing.reliability.goodput_under_kills import KILLS, PERIOD, measure


def main() -> int:
    """Prints the figures; returns 0 if the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="2 kills, 10 seconds after a first step")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    given = parser.parse_args()
    passed = True
    for backend in BACKENDS if given.backend is None else (given.backend,):
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(Path(folder), backend, *((10.0, 2, 0.1) if given.small else (PERIOD, KILLS, 5.0)))
        print(f"{backend:11s} {figures.line()}", flush=True)
        passed = passed and figures.passed()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
