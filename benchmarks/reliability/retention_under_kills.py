"""1,000 saves with 50 kills: which checkpoints exist, and what else is in the directory.

`python -m benchmarks.reliability.retention_under_kills` takes about five minutes. How it is measured:
`everstep.testing.reliability.retention_under_kills`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from everstep.testing.reliability.retention_under_kills import measure


def main() -> int:
    """Prints the figures; returns 0 if the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="60 saves, 5 kills")
    small = parser.parse_args().small
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), *((60, 5) if small else (1000, 50)))
    for line in figures.wrong[:20]:
        print(line, file=sys.stderr)
    print(figures.line())
    return 0 if figures.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
