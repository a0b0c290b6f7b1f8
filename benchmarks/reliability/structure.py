"""Programs that have changed between saving and restoring: refused, with every difference named, and nothing taken.

`python -m benchmarks.reliability.structure` takes about a minute per backend, and tries each that is installed, or the
one that KERAS_BACKEND names. How it is measured: `everstep.testing.reliability.structure`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from everstep.engine import backend

CHOSEN = os.environ.get("KERAS_BACKEND")
backend.select(None)

from everstep.testing.reliability.structural_changes import CHANGES  # noqa: E402
from everstep.testing.reliability.structure import measure  # noqa: E402


def main() -> int:
    """Prints the figures; returns 0 if the bars were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="each fourth change")
    parser.add_argument("--here", action="store_true", help="only the backend of this process")
    arguments = parser.parse_args()
    if not arguments.here and not CHOSEN:
        return max(_on(name, arguments.small) for name in backend.installed())
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), CHANGES[::4] if arguments.small else CHANGES)
    for line in [*figures.silent, *figures.incomplete, *figures.altered, *figures.lost]:
        print(line, file=sys.stderr)
    print(figures.line())
    return 0 if figures.passed() else 1


def _on(name: str, small: bool) -> int:
    command = [sys.executable, "-m", "benchmarks.reliability.structure", "--here", *(["--small"] if small else [])]
    return subprocess.run(command, env={**os.environ, "KERAS_BACKEND": name}).returncode


if __name__ == "__main__":
    sys.exit(main())
