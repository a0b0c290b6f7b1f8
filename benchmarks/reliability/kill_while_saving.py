"""A process that saves 100 MB back to back is killed, 200 times, at random instants.

`python -m benchmarks.reliability.kill_while_saving` takes about a quarter of an hour. How it is measured:
`everstep.testing.reliability.kill_while_saving`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from everstep.testing.reliability.kill_while_saving import measure


def main() -> int:
    """Prints the figures; returns 0 if the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="10 kills while saving 10 MB")
    small = parser.parse_args().small
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), 10 if small else 200, 10**7 if small else 10**8)
    print(figures.line())
    return 0 if figures.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
