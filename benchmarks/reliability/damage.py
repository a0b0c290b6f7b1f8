"""Checkpoints with a flipped bit, a short, an empty or a missing file: found, kept aside, and the one before used.

`python -m benchmarks.reliability.damage` takes about a minute. How it is measured:
`everstep.testing.reliability.damage`.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from everstep.testing.reliability.damage import measure


def main() -> int:
    """Prints the figures; returns 0 if the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="20 flips, and every 7th bit of the manifest")
    small = parser.parse_args().small
    logging.getLogger("everstep.checkpoint").setLevel(logging.ERROR)  # each damage is logged as a warning
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), *((20, 7) if small else (100, 1)))
    for line in figures.wrong()[:20]:
        print(line, file=sys.stderr)
    print(figures.line())
    return 0 if figures.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
