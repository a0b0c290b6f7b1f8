"""What saving costs: 500 MB of state, a checkpoint every 25 seconds of training.

`python -m benchmarks.reliability.save_cost` takes about eight minutes. How it is measured:
`everstep.testing.reliability.save_cost`.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from everstep.engine import backend

backend.select(None)

from everstep.testing.reliability.save_cost import BAR, SMALL_BAR, measure  # noqa: E402


def main() -> int:
    """Prints the figures; returns 0 if the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="50 MB every 2.5 seconds, and a bar of 20 %%")
    small = parser.parse_args().small
    with tempfile.TemporaryDirectory() as folder:
        numbers = (50_000_000, 2.5, 5, SMALL_BAR) if small else (500_000_000, 25.0, 8, BAR)
        figures = measure(Path(folder), *numbers)
    print(figures.line())
    return 0 if figures.passed() else 1


if __name__ == "__main__":
    sys.exit(main())
