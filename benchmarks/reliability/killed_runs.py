"""Whole runs killed at random instants: do they end in the same bits as one that was not?

`python -m benchmarks.reliability.killed_runs` takes about half an hour. How it is measured:
`everstep.testing.reliability.killed_runs`.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.reliability import BACKENDS
from everstep.testing.reliability.killed_runs import KILLS, MODELS, measure, together


def main() -> int:
    """Prints the figures; returns 0 if the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="2 kills per model")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    parser.add_argument("--kills", type=int, default=KILLS, help="in all")
    parser.add_argument("--seed", type=int, default=0, help="decides the instants")
    given = parser.parse_args()
    cases = [(model, backend) for backend in BACKENDS if given.backend in (None, backend) for model in MODELS]
    shares = [(given.kills + number) // len(cases) for number in range(len(cases))]
    parts = []
    for (model, backend), kills in zip(cases, shares, strict=True):
        folder = Path(tempfile.mkdtemp())
        parts.append(measure(folder, model, backend, 2 if given.small else kills, given.seed))
        print(f"{model:22s} {backend:11s} {parts[-1].line()}", flush=True)
        for line in parts[-1].wrong:
            print(f"  {line}", file=sys.stderr)
        if parts[-1].passed():
            shutil.rmtree(folder)
        else:
            print(f"  the runs are kept in {folder}", file=sys.stderr)
    total = together(parts)
    print(total.line())
    return 0 if total.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
