"""A sweep whose workers and trials are killed at random: is every trial complete, once, with the bits of a run alone?

`python -m benchmarks.reliability.sweep_kills` takes about an hour. How it is measured:
`everstep.testing.reliability.sweep_kills`.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from everstep.testing.reliability.sweep_kills import measure


def main(arguments: Sequence[str]) -> int:
    """Measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder, "compiled")))  # most of a short run
        figures = measure(Path(folder), options.trials, options.workers, options.kills, options.seed)
    print(figures.line())
    print("\n".join(figures.wrong))
    return bool(figures.wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
