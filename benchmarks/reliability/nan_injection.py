"""NaN injected at many places: in the loss, in a gradient, in an update that overflows after a finite loss.

`python -m benchmarks.reliability.nan_injection` tries 20 places, with `--small` three. How it is measured:
`everstep.testing.reliability.nan_injection`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from everstep.testing.reliability.nan_injection import places, run


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="3 places instead of 20")
    count = 3 if parser.parse_args(arguments).small else 20
    bad = failed = unskipped = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (kind, sample) in enumerate(places(count)):
            back = run(Path(folder, f"{number}-back"), kind, sample, trials=3)
            stop = run(Path(folder, f"{number}-stop"), kind, sample, trials=0)
            bad += len(back.bad) + len(stop.bad)
            failed += bool(back.error) or not stop.error
            unskipped += len(back.skipped) != 1
            print(f"{kind:8} sample {sample:3}: back {back.error or 'finished'}; stop: {stop.error[:60]}", flush=True)
    print(f"{count} places: {bad} checkpoints that are not finite, {failed} runs with an unexpected end, "
          f"{unskipped} that did not skip exactly one batch")  # fmt: skip
    return 1 if bad or failed or unskipped else 0


if __name__ == "__main__":
    sys.exit(main())
