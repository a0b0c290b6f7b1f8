"""Several processes that train one run, killed and frozen: do they end in the same bits as when nothing happens?

`python -m benchmarks.reliability.gang_kills` takes about 20 minutes on two cores. How it is measured:
`everstep.testing.reliability.gang_kills`.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from everstep.testing.reliability.gang_kills import KILLS, measure


def main() -> int:
    """Prints the figures; returns 0 if the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[2], help="how many train together")
    parser.add_argument("--kills", type=int, default=KILLS, help="for each number of processes")
    parser.add_argument("--seed", type=int, default=0, help="decides the steps and the processes")
    parser.add_argument("--backend", default="jax", help="the Keras backend")
    given = parser.parse_args()
    passed = True
    for processes in given.processes:
        with tempfile.TemporaryDirectory(prefix="everstep-gang-") as folder:
            begin = time.monotonic()
            figures = measure(Path(folder), processes, given.kills, given.seed, given.backend)
        minutes = (time.monotonic() - begin) / 60
        print(f"{processes} processes on {given.backend}: {figures.line()} | {minutes:.1f} minutes", flush=True)
        for line in figures.wrong:
            print(f"  {line}")
        passed = passed and figures.passed()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
