"""Runs many small calls by `model.fit` and by `everstep.fit`, without and with `model_dir`, and compares everything.

    python -m tools.fit_cases                                  # every case on three backends
    python -m tools.fit_cases --backend jax                    # on one; about fifteen minutes on two idle cores
    python -m tools.fit_cases --backend jax -k PyDataset -v    # the cases of a name; keeps no results
    python -m tools.fit_cases --backend jax -k PyDataset --keep  # keeps them, in place of their earlier results
    python -m tools.fit_cases --pages                          # writes the pages from the results that are kept

Each case (`cases/`) starts all calls with the same weights, seeds and data, and without shuffling. Compared are the
history, the weights, the optimizer, and what callbacks saw. Other results are an error, unless the case names the row
of `docs/reference/fit.md` that explains them; so is a case that names a row, but has the same results.

The results of a whole run are kept in `benchmarks/results/fit_cases/`.
"""

import argparse
import sys
from collections.abc import Sequence

from tools.fit_cases import pages, results


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases that were asked for; returns 1 if one has results that are not explained."""
    parser = argparse.ArgumentParser(
        "python -m tools.fit_cases", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", action="append", choices=results.BACKENDS, help="may be repeated; all by default")
    parser.add_argument("-k", dest="named", default="", help="only cases whose group or name contains this")
    parser.add_argument("--keep", action="store_true", help="with -k: keep the results beside those of the others")
    parser.add_argument("-v", dest="loud", action="store_true", help="show what the calls print")
    parser.add_argument("--pages", action="store_true", help="write the pages, and no more")
    options = parser.parse_args(argv)
    unexplained = 0
    for backend in () if options.pages else options.backend or results.BACKENDS:
        found = results.run(backend, options.named, options.loud)
        unexplained += sum(bool(results.surprise(row)) for row in found["cases"])
        if not options.named:
            results.write(backend, found)
        elif options.keep:
            results.put(backend, found)
    if options.keep or not options.named:
        pages.write()
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
