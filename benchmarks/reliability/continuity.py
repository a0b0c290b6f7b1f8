"""Curves of a run with kills: is every step there once, with the number that the uninterrupted run has?

`python -m benchmarks.reliability.continuity` takes about three minutes per backend. How it is measured:
`everstep.testing.reliability.continuity`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.reliability import BACKENDS
from everstep.testing.reliability.continuity import KILLS, STEPS, measure


def main() -> int:
    """Prints the figures; returns 0 if the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="60 steps, 1 kill")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    given = parser.parse_args()
    passed = True
    for backend in BACKENDS if given.backend is None else (given.backend,):
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(Path(folder), backend, *((60, 1) if given.small else (STEPS, KILLS)))
        print(f"{backend:11s} {figures.line()}", flush=True)
        for line in figures.wrong[:20]:
            print(f"  {line}", file=sys.stderr)
        passed = passed and figures.passed()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
