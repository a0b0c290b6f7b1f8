"""An epoch with kills: is every sample learned from exactly once?

`python -m benchmarks.reliability.ledger` takes about three minutes. How it is measured:
`everstep.testing.reliability.ledger`.
"""

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path

from everstep.testing.reliability.ledger import KILLS, SAMPLES, measure

BACKENDS = ("tensorflow", "jax", "torch")


def main() -> int:
    """Prints the figures; returns 0 if the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="6,000 samples, fewer kills")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    parser.add_argument("--processes", type=int, nargs="*", default=[1], help="how many train each attempt, in turn")
    given = parser.parse_args()
    samples, kills = (6000, len(given.processes)) if given.small else (SAMPLES, KILLS)
    passed = True
    for backend in [given.backend] if given.backend else filter(importlib.util.find_spec, BACKENDS):
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(Path(folder), backend, samples, kills, sizes=given.processes)
        print(f"{backend:11s} {figures.line()}", flush=True)
        passed = passed and figures.passed()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
