"""Signals at random instants: is the step reached the step saved, and how long does it take to end?

`python -m benchmarks.reliability.signals_answered` takes about half an hour per backend. How it is measured:
`everstep.testing.reliability.signals_answered`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.reliability import BACKENDS
from everstep.testing.reliability.signals_answered import GIGABYTE, SIGNALS, at_random, in_phases, summary, with_state


def main() -> int:
    """Prints the figures; returns 0 if the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="3 random instants, 0.1 GB of state")
    parser.add_argument("--backend", choices=BACKENDS, help="only this one")
    parser.add_argument("--signals", type=int, default=SIGNALS, help="how many random instants, per backend")
    given = parser.parse_args()
    passed = True
    for backend in BACKENDS if given.backend is None else (given.backend,):
        with tempfile.TemporaryDirectory() as folder:
            random_ones = at_random(Path(folder), backend, 3 if given.small else given.signals)
            print(f"{backend:11s} {summary(random_ones)}", flush=True)
            others = in_phases(Path(folder), backend)
            others.append(with_state(Path(folder), backend, GIGABYTE // 10 if given.small else GIGABYTE))
        for answer in [answer for answer in random_ones if answer.wrong] + others:
            print(f"{backend:11s} {answer.line()}", flush=True)
        passed = passed and not any(answer.wrong for answer in [*random_ones, *others])
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
