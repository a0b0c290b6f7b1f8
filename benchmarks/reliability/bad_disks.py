"""Disks that are full, read-only or forbidden while a checkpoint is written: 20 trials each.

`python -m benchmarks.reliability.bad_disks` takes about a minute. How it is measured:
`everstep.testing.reliability.bad_disks`.
"""

import argparse
import sys

from everstep.testing.reliability.bad_disks import CASES, measure_apart


def main() -> int:
    """Prints the figures; returns 0 if the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="3 trials each")
    parser.add_argument("--trials", type=int, default=20, help="of each case (default 20)")
    arguments = parser.parse_args()
    figures = [measure_apart(case, 3 if arguments.small else arguments.trials) for case in CASES]
    for one in figures:
        print(*one.wrong[:5], one.line(), sep="\n" if one.wrong else "")
    return 0 if all(one.passed() for one in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
