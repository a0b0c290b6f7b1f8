"""`verbose`, which means the same in every entry point.

| `verbose` | printed to standard error, in a notebook below the cell |
|---|---|
| 0, False | nothing; warnings only reach handlers that the program has set up |
| 1, True, "auto" | progress, in a notebook as a table that is replaced in place, and warnings |
| 2 | one line per epoch and warnings, for log files |
"""

import contextlib
import logging
from collections.abc import Iterator

from everstep.errors import UsageError

Verbose = bool | int | str
"""What users pass."""


def verbosity(verbose: Verbose) -> int:
    """Returns 0 for silent, 1 for progress, 2 for a line per epoch.

    Raises:
      UsageError: It is none of them, nor "auto".
    """
    if verbose == "auto":
        return 1
    if not isinstance(verbose, int) or verbose not in (0, 1, 2):
        raise UsageError(
            'expected "auto", 0 (silent), 1 (progress) or 2 (epochs only)', key="verbose", received=verbose
        )
    return int(verbose)


@contextlib.contextmanager
def log_output(verbose: Verbose) -> Iterator[None]:
    """With `verbose` 0, warnings inside the block only reach handlers that the program has set up: none are printed.

    Raises:
      UsageError: `verbose` has none of its values.
    """
    log, handler = logging.getLogger("everstep"), logging.NullHandler()
    if verbosity(verbose):
        yield
        return
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
